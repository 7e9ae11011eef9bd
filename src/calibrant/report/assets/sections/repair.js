report.section("repair", (root, data) => {
  const { percent, rows } = report.format;
  const sides = [["before", data.bins.width], ["after", data.after]].map(([name, bins]) => ({
    name, marks: report.binMarks(bins), text: root.querySelector(`[data-text=${name}]`), plot: null,
    total: bins.reduce((sum, bin) => sum + bin.count, 0),
  }));
  let from = sides[0].marks[report.heaviest(sides[0].marks)]?.from;

  // Both show the same range of confidence; after a repair it may hold no rows.
  const choose = (wanted) => {
    from = wanted;
    for (const side of sides) {
      const i = side.marks.findIndex((mark) => mark.from === from);
      const mark = side.marks[i];
      side.plot?.show(i);
      side.text.textContent = mark
        ? `Confidence ${percent(mark.from)} to ${percent(mark.to)}: right ${percent(mark.y)} of the time, ${rows(mark.count)}.`
        : "No rows with this confidence.";
    }
  };
  for (const side of sides) {
    report.chart(root.querySelector(`[data-chart=${side.name}]`), (width) => {
      side.plot = report.reliabilityPlot(width, {
        marks: side.marks, rows: side.total, choose: (i) => choose(side.marks[i].from),
        label: `Reliability diagram ${side.name} repair, one mark a bin`, across: "confidence", upwards: "accuracy",
      });
      side.plot.show(side.marks.findIndex((mark) => mark.from === from));
      return side.plot.svg;
    });
  }
  choose(from);
});
