// The data, and the register of sections. A section's script calls
// report.section(id, (root, data) => ...); it runs once, with its element, when all are loaded.
"use strict";
const report = (() => {
  const decode = (value) => (value === "inf" ? Infinity : value === "-inf" ? -Infinity : value);
  const objects = (columns, rows) => rows.map((row) =>
    Object.fromEntries(columns.map((column, i) => [column, column === "name" ? row[i] : decode(row[i])])));

  const raw = JSON.parse(document.getElementById("report-data").textContent);
  const data = {
    ...raw,
    bins: { width: objects(raw.binColumns, raw.bins.width), mass: objects(raw.binColumns, raw.bins.mass) },
    after: raw.after && objects(raw.binColumns, raw.after),
    words: raw.words,
    classes: objects(raw.classColumns, raw.classes),
    riskCoverage: objects(["coverage", "risk", "threshold"], raw.riskCoverage),
  };
  const setups = [];
  const listeners = {};
  return {
    data,
    section: (id, setup) => setups.push([id, setup]),
    start: () => setups.forEach(([id, setup]) => {
      const root = document.getElementById(id);
      if (root) setup(root, data);
    }),
    // Sections speak to each other only through these two.
    on: (name, listener) => { (listeners[name] ||= []).push(listener); },
    tell: (name, detail) => (listeners[name] || []).forEach((listener) => listener(detail)),
  };
})();
