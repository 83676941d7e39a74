// Sorts the rows of a table by a tapped heading: numbers as numbers, words as words.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const descending = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", descending === 1 ? "ascending" : "descending");
      const value = (row) => row.cells[column].dataset.sort;
      const rows = [...table.tBodies[0].rows];
      const numeric = rows.every((row) => value(row) !== "" && !Number.isNaN(Number(value(row))));
      rows.sort((a, b) => descending * (numeric
        ? Number(value(a)) - Number(value(b))
        : value(a).localeCompare(value(b))));
      rows.forEach((row) => row.classList.remove("first"));
      table.tBodies[0].append(...rows);
    });
  });
}
