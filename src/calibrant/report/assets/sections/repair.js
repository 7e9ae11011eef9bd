report.section("repair", (root, data) => {
  const { percent, rows } = report.format;
  const { words } = data;
  // Events are shown on the scale of the page, a log scale where they are rare.
  const axis = words.event && data.curves ? { scale: data.curves.scale, floor: data.curves.floor } : {};
  const marksOf = (bins, curves) => (words.event && curves ? report.curveMarks(curves, axis.scale) : report.binMarks(bins));
  const sides = [["before", data.bins.width, data.curves], ["after", data.after, data.curvesAfter]].map(([name, bins, curves]) => {
    const marks = marksOf(bins, curves);
    return {
      name, marks, text: root.querySelector(`[data-text=${name}]`), plot: null,
      total: marks.reduce((sum, mark) => sum + mark.count, 0),
    };
  });
  let from = sides[0].marks[report.heaviest(sides[0].marks)]?.from;

  // Both show the same range of confidence; after a repair it may hold no rows.
  const choose = (wanted) => {
    from = wanted;
    for (const side of sides) {
      const i = side.marks.findIndex((mark) => mark.from === from);
      const mark = side.marks[i];
      side.plot?.show(i);
      side.text.textContent = mark
        ? `${report.upper(words.claimed)} ${percent(mark.from)} to ${percent(mark.to)}: ${words.event ? `${words.happened} ${percent(mark.y)}` : `right ${percent(mark.y)} of the time`}, ${rows(mark.count)}.`
        : `No rows with this ${words.claimed}.`;
    }
  };
  for (const side of sides) {
    report.chart(root.querySelector(`[data-chart=${side.name}]`), (width) => {
      side.plot = report.reliabilityPlot(width, {
        marks: side.marks, rows: side.total, choose: (i) => choose(side.marks[i].from),
        label: `Reliability diagram ${side.name} repair, one mark a bin`, across: words.claimed, upwards: words.happened, ...axis,
      });
      side.plot.show(side.marks.findIndex((mark) => mark.from === from));
      return side.plot.svg;
    });
  }
  choose(from);
});
