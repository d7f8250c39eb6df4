"""Residues and atoms: alphabets, atom layouts, rigid groups, stereochemistry. Stated once, here."""
