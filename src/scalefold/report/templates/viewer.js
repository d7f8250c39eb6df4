// The kept structures: the prediction, coloured by residue, over the experiment in grey where there is one.
const chains = JSON.parse(document.getElementById("structures-data").textContent);
for (const chain of chains) for (const name of ["predicted", "true"]) chain[name] = decoded(chain[name]);
const viewerBox = document.querySelector(".viewer");
const experimentColour = "#8f9ba8";
const names = { A: "ALA", R: "ARG", N: "ASN", D: "ASP", C: "CYS", Q: "GLN", E: "GLU", G: "GLY", H: "HIS", I: "ILE",
  L: "LEU", K: "LYS", M: "MET", F: "PHE", P: "PRO", S: "SER", T: "THR", W: "TRP", Y: "TYR", V: "VAL" };

// Coordinates of N, CA, C, O of each residue; NaN where there is no atom.
function decoded(base64) {
  const points = new DataView(Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0)).buffer);
  return Float32Array.from({ length: points.byteLength / 4 }, (_, place) => points.getFloat32(4 * place, true));
}

// A chain of which most peptide bonds are broken has no ribbon: rods from CA to CA show its course.
function isBroken(points) {
  let bonds = 0, broken = 0;
  for (let carbon = 6; carbon + 9 <= points.length; carbon += 12) {
    const length = Math.hypot(...[0, 1, 2].map((axis) => points[carbon + 6 + axis] - points[carbon + axis]));
    if (!isNaN(length)) bonds += 1, broken += length > 2;
  }
  return broken > bonds / 2;
}

// Backbone atoms as lines of a PDB file, from which 3Dmol finds helices and strands.
function pdb(sequence, points) {
  const lines = [];
  [...sequence].forEach((letter, residue) => {
    ["N", "CA", "C", "O"].forEach((atom, slot) => {
      const xyz = points.subarray(12 * residue + 3 * slot, 12 * residue + 3 * slot + 3);
      if (!xyz.length || xyz.some(isNaN)) return;
      lines.push(
        "ATOM  " + String((lines.length + 1) % 100000).padStart(5) + "  " + atom.padEnd(4) + (names[letter] ?? "UNK") +
        " A" + String(residue + 1).padStart(4) + "    " + [...xyz].map((value) => value.toFixed(3).padStart(8)).join("") +
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

  function addRods(points, colours) {
    const alphaCarbon = (residue) => {
      const [x, y, z] = points.subarray(12 * residue + 3, 12 * residue + 6);
      return { x, y, z };
    };
    for (let residue = 0; residue + 1 < points.length / 12; residue++) {
      const [start, end] = [alphaCarbon(residue), alphaCarbon(residue + 1)];
      if (isNaN(start.x) || isNaN(end.x)) continue;
      viewer.addCylinder({ start, end, radius: 0.3, fromCap: "round", toCap: "round", color: colours[residue] });
    }
  }

  function paint() {
    const chain = chains[chosen("chain")];
    const colours = [...chain.sequence].map((_, residue) => colourOf(chain[chosen("colour")][residue]));
    const broken = isBroken(chain.predicted);
    const ribbon = { cartoon: { colorfunc: (atom) => colours[atom.resi - 1] } };
    viewer.removeAllShapes();
    if (broken && chosen("predicted")) addRods(chain.predicted, colours);
    viewer.setStyle({ model: 0 }, chosen("predicted") && !broken ? ribbon : {});
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
