// The kept structures: the prediction, coloured by residue, over the experiment in grey.
const chains = JSON.parse(document.getElementById("structures-data").textContent);
const viewerBox = document.querySelector(".viewer");
const experimentColour = "#8f9ba8";
const names = { A: "ALA", R: "ARG", N: "ASN", D: "ASP", C: "CYS", Q: "GLN", E: "GLU", G: "GLY", H: "HIS", I: "ILE",
  L: "LEU", K: "LYS", M: "MET", F: "PHE", P: "PRO", S: "SER", T: "THR", W: "TRP", Y: "TYR", V: "VAL" };

// Backbone atoms as lines of a PDB file, from which 3Dmol finds helices and strands.
function pdb(sequence, base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const points = new DataView(bytes.buffer);
  const lines = [];
  [...sequence].forEach((letter, residue) => {
    ["N", "CA", "C", "O"].forEach((atom, slot) => {
      const xyz = [0, 1, 2].map((axis) => points.getFloat32(4 * (12 * residue + 3 * slot + axis), true));
      if (xyz.some(isNaN)) return;
      lines.push(
        "ATOM  " + String((lines.length + 1) % 100000).padStart(5) + "  " + atom.padEnd(4) + (names[letter] ?? "UNK") +
        " A" + String(residue + 1).padStart(4) + "    " + xyz.map((value) => value.toFixed(3).padStart(8)).join("") +
        "  1.00  0.00           " + atom[0]);
    });
  });
  return lines.join("\n") + "\n";
}

function colourOf(score) {
  if (score === null || score === undefined) return "#c9ced6";
  return score > 90 ? "#0053d6" : score > 70 ? "#2f9be0" : score > 50 ? "#e0b400" : "#f0702e";
}

function chosen(name) {
  return viewerBox.querySelector(`input[name="${name}"]:checked`)?.value;
}

function showViewer() {
  const viewer = $3Dmol.createViewer(viewerBox.querySelector(".canvas"), { antialias: true });
  // The wheel scrolls the page; with Ctrl it zooms, as do two fingers.
  viewer.getCanvas().addEventListener("wheel", (event) => event.ctrlKey || event.stopImmediatePropagation(), true);

  function paint() {
    const scores = chains[chosen("chain")][chosen("colour")];
    const colorfunc = (atom) => colourOf(scores[atom.resi - 1]);
    viewer.setStyle({ model: 0 }, chosen("predicted") ? { cartoon: { colorfunc } } : {});
    viewer.setStyle({ model: 1 }, chosen("true") ? { cartoon: { color: experimentColour, opacity: 0.75 } } : {});
    viewer.render();
  }

  function load() {
    const chain = chains[chosen("chain")];
    viewer.removeAllModels();
    viewer.addModel(pdb(chain.sequence, chain.predicted), "pdb");
    viewer.addModel(pdb(chain.sequence, chain.true), "pdb");
    const dark = getComputedStyle(document.body).getPropertyValue("--card").trim();
    viewer.setBackgroundColor(dark);
    for (const article of document.querySelectorAll("article.structure"))
      article.classList.toggle("chosen", article.dataset.chain === chosen("chain"));
    paint();
    viewer.zoomTo();
    viewer.render();
  }

  for (const input of viewerBox.querySelectorAll("input"))
    input.addEventListener("change", input.name === "chain" ? load : paint);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", load);
  load();
}

if (document.createElement("canvas").getContext("webgl2")) {
  viewerBox.hidden = false;
  document.querySelector(".no-viewer").remove();
  document.getElementById("structures").classList.add("one-at-a-time");
  showViewer();
}
