// Sort a table by the column whose heading is clicked, and hide the rows without the search text. Cells are compared by
// `data-v` if they have it. Rows are only moved or hidden, so no text can become markup.
"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.querySelectorAll("thead th").forEach((head, column) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const order = head.getAttribute("aria-sort") === "descending" ? "ascending" : "descending";
      table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const value = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent;
      const rows = [...body.rows];
      const numeric = rows.every((row) => value(row) === "" || !isNaN(Number(value(row))));
      const key = (row) => (numeric ? (value(row) === "" ? -Infinity : Number(value(row))) : value(row));
      rows.sort((a, b) => (numeric ? key(a) - key(b) || 0 : key(a).localeCompare(key(b))) * sign);
      body.append(...rows);
    });
  });
}
for (const box of document.querySelectorAll("input[data-table]")) {
  const body = document.getElementById(box.dataset.table).tBodies[0];
  box.addEventListener("input", () => {
    const query = box.value.toLowerCase();
    for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(query);
  });
}
