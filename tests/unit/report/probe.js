// What test_browser.py and test_predictions.py ask of a page, written as JSON into #probe.
addEventListener("load", () => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const field = document.querySelector("input[data-filter]");
  const table = document.getElementById(field.dataset.filter);
  const named = () => [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => row.cells[0].textContent);
  const picture = () => {
    const canvas = document.querySelector(".viewer canvas");
    const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
    const context = copy.getContext("2d");
    context.drawImage(canvas, 0, 0);
    const pixels = new Uint32Array(context.getImageData(0, 0, copy.width, copy.height).data.buffer);
    const counts = new Map();
    for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
    return { drawn: pixels.length - Math.max(...counts.values()), colours: counts.size, url: copy.toDataURL() };
  };
  const press = (name, value) => document.querySelector(`input[name="${name}"]` + (value ? `[value="${value}"]` : "")).click();
  const found = { width: innerWidth, scroll: document.documentElement.scrollWidth };
  found.cut = all(".table").filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.getAttribute("aria-label"));
  found.first = picture();
  press("colour", "lddt");
  found.byLddt = picture();
  press("chain", "1");
  found.other = picture();
  found.articles = all("article.structure").filter((one) => one.checkVisibility()).map((one) => one.dataset.chain);
  press("predicted");
  press("true");
  found.nothing = picture();
  const sort = [...table.querySelectorAll("th > button")].find((button) => /Length|Residues/.test(button.textContent));
  sort.click();
  found.falling = named();
  sort.click();
  found.rising = named();
  field.value = "Validation 102M";
  field.dispatchEvent(new Event("input"));
  found.filtered = named();
  found.csv = all("a.csv").map((link) => link.href);
  found.unreachable = all("a[href], button, input, .table, summary").filter((one) => {
    one.focus();
    return one.checkVisibility() && document.activeElement !== one;
  }).map((one) => one.outerHTML.slice(0, 80));
  for (const name of ["first", "byLddt", "other", "nothing"]) found[name].url = found[name].url.length + found[name].url.slice(-4000);
  document.getElementById("probe").textContent = JSON.stringify(found);
});
