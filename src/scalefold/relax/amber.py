"""Minimise the energy of a predicted chain by OpenMM, as AlphaFold2 does (Suppl. sec. 1.8.6).

AMBER99SB in vacuum, bonds to hydrogen fixed, each heavy atom held to where it was predicted.
Residues that still have violations are let go, and the energy is minimised again.
"""

from __future__ import annotations

import io
import math
from typing import Final, NamedTuple

import openmm
import torch
from openmm import app, unit
from torch import Tensor

from scalefold.chem.residues import ATOM37_INDEX, ATOM37_MASK, CA, C, O
from scalefold.errors import InputError
from scalefold.evaluate.metrics.comparison import Comparison
from scalefold.evaluate.metrics.stereochemistry import violating_residues
from scalefold.features.constants import per_residue
from scalefold.predict.pdb_file import pdb

_FORCE_FIELD: Final = "amber99sb.xml"
_STIFFNESS: Final = 10.0 * unit.kilocalories_per_mole / unit.angstroms**2
_TOLERANCE: Final = 10.0 * unit.kilojoules_per_mole / unit.nanometer
"""AlphaFold2's 2.39 kcal/mol: OpenMM has since found out that it compares it with a force."""
_MOST_ROUNDS: Final = 3
_OXT: Final = ATOM37_INDEX["OXT"]
_C_O_ANGSTROM: Final = 1.25  # of a carboxylate


class Relaxed(NamedTuple):
    """A chain whose energy was minimised.

    Attributes
    ----------
    positions : Tensor, shape (N, 37, 3), float64
        Å; of the atoms that the prediction has.
    energies : tuple of float
        Before and after, the restraints' among them, kJ/mol.
    """

    positions: Tensor
    energies: tuple[float, float]
    rounds: int


def relax(aatype: Tensor, positions: Tensor, mask: Tensor, threads: int | None = None) -> Relaxed:
    """Minimise the energy of a chain, up to three times while it has broken bonds or clashes.

    Each further round holds the atoms to where the one before left them, but for those of residues
    that have had violations.

    Parameters
    ----------
    aatype : Tensor, shape (N,)
        Residue types 0-20.
    positions : Tensor, shape (N, 37, 3)
        Å.
    mask : Tensor, shape (N, 37)
        The atom was predicted: all that the residue types have.
    threads : int, optional
        On the CPU; default: OpenMM's choice of device and number.

    Raises
    ------
    InputError
        A residue is of unknown type or lacks atoms, or the energy is not finite.
    """
    _check_whole(aatype, mask)
    free = torch.zeros(len(aatype), dtype=torch.bool)
    energies: list[list[float]] = []
    while len(energies) < _MOST_ROUNDS:
        positions, *both = _minimised(aatype, positions, mask, free, threads)
        energies.append(both)
        violating = violating_residues(Comparison(positions, mask, positions, mask, aatype))
        if not violating.any():
            break
        free |= violating
    return Relaxed(positions, (energies[0][0], energies[-1][1]), len(energies))


def _minimised(
    aatype: Tensor, positions: Tensor, mask: Tensor, free: Tensor, threads: int | None
) -> tuple[Tensor, float, float]:
    """Return positions after one minimisation, and the energies before and after it."""
    text = pdb("chain", aatype, *_with_terminus(positions, mask), torch.zeros(len(aatype)))
    platform = None if threads is None else openmm.Platform.getPlatformByName("CPU")
    properties = None if threads is None else {"Threads": str(threads)}
    try:
        read = app.PDBFile(io.StringIO(text))
        field = app.ForceField(_FORCE_FIELD)
        model = app.Modeller(read.topology, read.positions)
        model.addHydrogens(field, platform=platform)
        system = field.createSystem(model.topology, constraints=app.HBonds)
        system.addForce(_restraints(model, free))
        simulation = app.Simulation(
            model.topology, system, openmm.VerletIntegrator(0.001), platform, properties
        )
        simulation.context.setPositions(model.positions)
        before = _energy(simulation)
        simulation.minimizeEnergy(tolerance=_TOLERANCE)
        after = _energy(simulation)
    except (openmm.OpenMMException, ValueError) as error:
        raise InputError(
            f"OpenMM cannot relax it ({error}): the prediction is too far from a protein"
        ) from error
    if not math.isfinite(after):
        raise InputError(f"OpenMM finds no relaxed structure: its energy is {after}")
    state = simulation.context.getState(getPositions=True)
    found = state.getPositions(asNumpy=True).value_in_unit(unit.angstroms)
    relaxed = positions.detach().cpu().double().clone()
    for atom in model.topology.atoms():
        slot = ATOM37_INDEX.get(atom.name)
        if slot is not None and slot != _OXT:
            relaxed[atom.residue.index, slot] = torch.from_numpy(found[atom.index])
    return relaxed, before, after


def _check_whole(aatype: Tensor, mask: Tensor) -> None:
    lacking = (per_residue(ATOM37_MASK, aatype) > mask.float()).any(1) | (aatype == 20)
    if lacking.any():
        number = int(lacking.nonzero()[0]) + 1
        raise InputError(
            f"residue {number} is of unknown type (X) or lacks atoms, and a force field needs all: "
            "predict the sequence with a known residue there"
        )


def _with_terminus(positions: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Add the second oxygen of the last residue, in the plane of the others."""
    positions, mask = positions.detach().cpu().double().clone(), mask.detach().cpu().bool().clone()
    last = positions[-1]
    away = torch.nn.functional.normalize(last[[CA, O]] - last[C], dim=-1).sum(0)
    positions[-1, _OXT] = last[C] - _C_O_ANGSTROM * torch.nn.functional.normalize(away, dim=0)
    mask[-1, _OXT] = True
    return positions, mask


def _restraints(model: app.Modeller, free: Tensor) -> openmm.CustomExternalForce:
    """Springs from each heavy atom to its place, but for free residues."""
    force = openmm.CustomExternalForce("0.5 * k * ((x - x0)^2 + (y - y0)^2 + (z - z0)^2)")
    force.addGlobalParameter("k", _STIFFNESS)
    for name in ("x0", "y0", "z0"):
        force.addPerParticleParameter(name)
    for atom, place in zip(model.topology.atoms(), model.positions, strict=True):
        if atom.element is not app.element.hydrogen and not free[atom.residue.index]:
            force.addParticle(atom.index, place)
    return force


def _energy(simulation: app.Simulation) -> float:
    state = simulation.context.getState(getEnergy=True)
    energy: float = state.getPotentialEnergy().value_in_unit(unit.kilojoules_per_mole)
    return energy
