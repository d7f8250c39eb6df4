// Tables that can be sorted, filtered and saved as CSV.

// Sort by the column of the button that was pressed; again: the other way round.
for (const button of document.querySelectorAll("th > button")) {
  button.disabled = false;
  button.addEventListener("click", () => {
    const head = button.parentElement;
    const column = head.cellIndex;
    const body = head.closest("table").tBodies[0];
    const up = head.getAttribute("aria-sort") === "descending";
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [valueOf(a.cells[column]), valueOf(b.cells[column])];
      if (x === "" || y === "") return (x === "") - (y === "");
      const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
      return up ? order : -order;
    });
    body.append(...rows);
  });
}

function valueOf(cell) {
  return cell.dataset.value ?? cell.textContent.trim();
}

// The rows that hold all words of the field above a table.
for (const field of document.querySelectorAll("input[data-filter]")) {
  const rows = [...document.getElementById(field.dataset.filter).tBodies[0].rows];
  field.closest("label").hidden = false;
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
}

// A link below each table, to its values as they are, in the order of the page.
function csv(table) {
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const lines = [...table.rows].map((row) => [...row.cells].map((cell) => quoted(valueOf(cell))).join(","));
  return "data:text/csv;charset=utf-8," + encodeURIComponent(lines.join("\n") + "\n");
}
for (const box of document.querySelectorAll(".table")) {
  const table = box.querySelector("table");
  if (!table) continue;
  const link = document.createElement("a");
  link.className = "csv";
  link.textContent = "CSV";
  link.download = `${box.getAttribute("aria-label").toLowerCase().replaceAll(/[^a-z0-9]+/g, "-")}.csv`;
  link.setAttribute("aria-label", `Save as CSV: ${box.getAttribute("aria-label")}`);
  link.href = csv(table);
  link.addEventListener("click", () => (link.href = csv(table)));
  const both = document.createElement("div");
  both.className = "with-csv";
  box.replaceWith(both);
  both.append(box, link);
}
