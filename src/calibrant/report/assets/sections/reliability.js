report.section("reliability", (root, data) => {
  const { percent, share, points, count } = report.format;
  const readout = root.querySelector("[data-readout]");
  const total = data.bins.width.reduce((sum, bin) => sum + bin.count, 0);
  let binning = "width";
  let marks = [];
  let chosen = 0;
  let plot = null;
  let bars = null;

  const read = () => (binning === "corp" ? data.curves.corp.map((_, i) => point(i)) : report.binMarks(data.bins[binning]));
  const words = {
    over: "Outside the range of a calibrated model: it claims more than it delivers here.",
    under: "Outside the range of a calibrated model: it is right more often than it says here.",
    inside: "Inside the range of a calibrated model: the difference could be chance.",
  };
  // The isotonic curve has points in the place of marks.
  const point = (i) => {
    const [x, y, bandLow, bandHigh] = data.curves.corp[i];
    const state = bandLow === null || (y >= bandLow && y <= bandHigh) ? "inside" : y < x ? "over" : "under";
    return { x, y, bandLow, bandHigh, state, from: x, to: x };
  };
  const describeCurve = (mark) => {
    const judged = mark.bandLow !== null;
    readout.replaceChildren(
      report.stepper(`Point ${chosen + 1} of ${marks.length}`, (by) => choose(chosen + by)),
      report.html("p", { class: "big" }, `Confidence ${percent(mark.x)}`),
      report.facts([
        ["Accuracy", share(mark.y)],
        ["Gap", `${points(mark.x - mark.y)} points`],
        ...(judged ? [["A calibrated model", `${share(mark.bandLow)} to ${share(mark.bandHigh)}`]] : []),
      ]),
      report.html("p", { class: `judgement ${mark.state}` }, judged ? words[mark.state] : "No range of a calibrated model is drawn here."),
    );
  };
  const describe = () => {
    const mark = marks[chosen];
    if (!mark) return;
    if (binning === "corp") { describeCurve(mark); return; }
    readout.replaceChildren(
      report.stepper(`Bin ${chosen + 1} of ${marks.length} with rows`, (by) => choose(chosen + by)),
      report.html("p", { class: "big" }, `Confidence ${percent(mark.from)} to ${percent(mark.to)}`),
      report.facts([
        ["Rows", count(mark.count), `${percent(mark.count / total)} of all`],
        ["Mean confidence", share(mark.x)],
        ["Accuracy", share(mark.y), `${share(mark.low)} to ${share(mark.high)}`],
        ["Gap", `${points(mark.x - mark.y)} points`],
        ["A calibrated model", `${share(mark.bandLow)} to ${share(mark.bandHigh)}`],
      ]),
      report.html("p", { class: `judgement ${mark.state}` }, words[mark.state]),
    );
  };
  const choose = (i) => {
    if (!marks[i]) return;
    const held = document.activeElement?.closest?.(".steps") && document.activeElement.getAttribute("aria-label");
    chosen = i;
    plot?.show(i);
    bars?.show(marks[i]);
    describe();
    // The readout is made anew; a reader stepping by keyboard stays on the same button.
    if (held && readout.contains(document.activeElement) === false) readout.querySelector(`[aria-label="${held}"]`)?.focus();
  };

  marks = read();
  chosen = report.heaviest(marks);
  const redraw = report.chart(root.querySelector("[data-chart=reliability]"), (width) => {
    plot = binning === "corp" ? report.curvePlot(width, {
      points: data.curves.corp, choose, label: "Isotonic reliability curve with the band of a calibrated model", across: "confidence", upwards: "accuracy",
    }) : report.reliabilityPlot(width, {
      marks, rows: total, choose, label: "Reliability diagram, one mark a bin", across: "confidence", upwards: "accuracy",
    });
    plot.show(chosen);
    return plot.svg;
  });

  const mean = (column) => data.bins.width.reduce((sum, bin) => sum + (bin.count ? bin.count * bin[column] : 0), 0) / Math.max(total, 1);
  const claimed = mean("confidence");
  const accuracy = mean("accuracy");
  const key = (kind, text) => report.html("span", { class: "key" }, report.html("i", { class: `stroke ink ${kind}` }), text);
  root.querySelector("[data-text=means]").append(
    key("dashed", `mean confidence ${percent(claimed)}`), key("", `accuracy ${percent(accuracy)}`));
  report.chart(root.querySelector("[data-chart=histogram]"), (width) => {
    const { svg: make, scale } = report;
    const height = 150;
    const box = { left: 56, right: width - 12, top: 12, bottom: height - 44 };
    const shares = data.bins.width.map((bin) => bin.count / Math.max(total, 1));
    const tallest = Math.max(...shares, 1e-9);
    const x = scale(0, 1, box.left, box.right);
    const y = scale(0, tallest, box.bottom, box.top);
    const svg = report.canvas(width, height, `Histogram of confidence. Mean confidence ${percent(claimed)}, accuracy ${percent(accuracy)}.`);
    for (const tick of report.ticks(0, tallest, 2)) {
      svg.append(
        make("line", { class: tick === 0 ? "axis" : "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }),
        make("text", { x: box.left - 8, y: y(tick) + 4, "text-anchor": "end" }, percent(tick)),
      );
    }
    const drawn = data.bins.width.map((bin, i) => make("rect", {
      class: "histogram-bar", x: x(bin.low) + 1, width: Math.max(x(bin.high) - x(bin.low) - 2, 1),
      y: bin.count ? Math.min(y(shares[i]), box.bottom - 1) : box.bottom, height: bin.count ? Math.max(box.bottom - y(shares[i]), 1) : 0,
    }));
    const column = make("rect", { class: "focus-column", y: box.top, height: box.bottom - box.top, width: 0 });
    svg.append(column, ...drawn);
    [0, 0.2, 0.4, 0.6, 0.8, 1].forEach((tick) => svg.append(
      make("text", { x: x(tick), y: box.bottom + 18, "text-anchor": "middle" }, `${Math.round(100 * tick)}%`)));
    svg.append(make("text", { class: "title", x: (box.left + box.right) / 2, y: height - 5, "text-anchor": "middle" }, "confidence (bars: share of rows)"));
    for (const [value, kind] of [[accuracy, ""], [claimed, " claimed"]]) {
      const along = { x1: x(value), x2: x(value), y1: 0, y2: box.bottom };
      svg.append(make("line", { class: "reference-edge", ...along }), make("line", { class: `reference${kind}`, ...along }));
    }
    const show = (mark) => {
      if (!mark) return;
      drawn.forEach((bar, i) => bar.classList.toggle("chosen", binning === "width" && data.bins.width[i].low === mark.from));
      column.setAttribute("x", x(mark.from));
      column.setAttribute("width", Math.max(x(mark.to) - x(mark.from), 2));
    };
    report.follow(svg, (place) => {
      const across = (place.x - box.left) / (box.right - box.left);
      choose(marks.findIndex((mark) => (binning === "corp" ? mark.x >= across : across > mark.from && across <= mark.to)));
    });
    bars = { show };
    show(marks[chosen]);
    return svg;
  });
  describe();

  root.querySelectorAll("[name=binning]").forEach((input) => input.addEventListener("change", () => {
    binning = input.value;
    marks = read();
    chosen = binning === "corp" ? marks.findIndex((mark) => mark.x >= claimed) : report.heaviest(marks);
    chosen = Math.max(chosen, 0);
    redraw();
    choose(chosen);
  }));
});
