const number = /^[+\-−]?\d+(\.\d+)?(e[+-]?\d+)?/i;
const keyOf = (row, column) => {
  const text = row.cells[column].textContent.trim(), found = text.match(number);
  return found ? Number(found[0].replace('−', '-')) : text === '–' ? '' : text;
};
const compare = (a, b) =>
  typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b), 'en', {numeric: true});
const sortBy = (heading) => {
  const table = heading.closest('table'), column = heading.cellIndex, body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [keyOf(row, column), row]);
  const wasSorted = heading.getAttribute('aria-sort');
  const down = wasSorted ? wasSorted === 'ascending' : rows.some(([key]) => typeof key === 'number');
  rows.sort(([a], [b]) =>
    (a === '') - (b === '') || (typeof b === 'number') - (typeof a === 'number') || (down ? -1 : 1) * compare(a, b));
  body.append(...rows.map(([, row]) => row));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute('aria-sort');
  heading.setAttribute('aria-sort', down ? 'descending' : 'ascending');
};
for (const heading of document.querySelectorAll('thead th')) {
  if (heading.closest('table').tBodies[0].rows.length < 2) continue;
  const button = document.createElement('button');
  button.type = 'button';
  button.title = 'Sort by this column';
  button.append(...heading.childNodes);
  button.addEventListener('click', () => sortBy(heading));
  heading.append(button);
}
let opened = [];
window.addEventListener('beforeprint', () => {
  opened = [...document.querySelectorAll('details:not([open])')];
  for (const details of opened) details.open = true;
});
window.addEventListener('afterprint', () => { for (const details of opened) details.open = false; });
