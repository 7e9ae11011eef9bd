report.section("probability", (root, data) => {
  const { percent, points, count, rows } = report.format;
  const { curves, words } = data;
  const readout = root.querySelector("[data-readout]");
  const slider = root.querySelector("#claimed");
  const total = data.rows;
  let curve = "corp";
  let scale = curves.scale;
  let chosen = 0;
  let plot = null;
  let redrawHistogram = null;
  let marks = [];
  root.querySelector(`[name=scale][value=${scale}]`).checked = true;

  const axis = () => ({ scale, floor: curves.floor, across: words.claimed, upwards: words.happened });
  // On a log scale the smoothed curve begins where the kernel is narrower than the way to 0.
  const kernel = () => {
    const wide = curves.kernel.filter(([p]) => scale !== "log" || p >= curves.bandwidth);
    return (wide.length ? wide : curves.kernel).map(([p, v, density]) => [p, v, null, null, density]);
  };
  const shown = () => (curve === "corp" ? curves.corp : curve === "kernel" ? kernel() : marks);
  const middle = () => {
    if (curve === "bins") return report.heaviest(marks);
    const list = shown();
    const nearest = (wanted) => list.reduce((best, [p], i) => (Math.abs(p - wanted) < Math.abs(list[best][0] - wanted) ? i : best), 0);
    return nearest(curves.means[0]);
  };

  const judge = (y, x, low, high) => {
    if (low === null) return ["inside", "No range of a calibrated model is drawn here."];
    if (y >= low && y <= high) return ["inside", "Inside the range of a calibrated model: the difference could be chance."];
    return y < x ? ["over", "Outside the range of a calibrated model: the probability is too high here."]
      : ["under", "Outside the range of a calibrated model: the probability is too low here."];
  };
  const describe = () => {
    if (curve === "bins") {
      const mark = marks[chosen];
      const [state, text] = judge(mark.y, mark.x, mark.bandLow, mark.bandHigh);
      readout.replaceChildren(
        report.stepper(`Bin ${chosen + 1} of ${marks.length} with rows`, (by) => choose(chosen + by)),
        report.html("p", { class: "big" }, `Probability ${percent(mark.from)} to ${percent(mark.to)}`),
        report.facts([
          ["Rows", count(mark.count), `${percent(mark.count / total)} of all`],
          ["Mean probability", percent(mark.x)],
          ["Frequency", percent(mark.y)],
          ["Gap", `${points(mark.x - mark.y)} points`],
          ["A calibrated model", mark.bandLow === null ? "–" : `${percent(mark.bandLow)} to ${percent(mark.bandHigh)}`],
        ]),
        report.html("p", { class: `judgement ${state}` }, text));
      return;
    }
    const [p, v, low, high] = shown()[chosen];
    const [state, text] = curve === "kernel"
      ? ["inside", `Rows within about ${percent(2 * curves.bandwidth)} count here, the nearest most.`] : judge(v, p, low, high);
    readout.replaceChildren(
      report.html("p", { class: "big" }, `It says ${percent(p)}`),
      report.facts([
        [report.upper(words.happened), percent(v)],
        ["Gap", `${points(p - v)} points`],
        ...(curve === "corp" && low !== null ? [["A calibrated model", `${percent(low)} to ${percent(high)}`]] : []),
      ]),
      report.html("p", { class: `judgement ${state}` }, text));
    slider.value = String(chosen);
    slider.setAttribute("aria-valuetext", `It says ${percent(p)}, ${words.happened} ${percent(v)}`);
  };
  const choose = (i) => {
    if (!shown()[i]) return;
    const held = document.activeElement?.closest?.(".steps") && document.activeElement.getAttribute("aria-label");
    chosen = i;
    plot?.show(i);
    describe();
    if (held && !readout.contains(document.activeElement)) readout.querySelector(`[aria-label="${held}"]`)?.focus();
  };

  const redraw = report.chart(root.querySelector("[data-chart=probability]"), (width) => {
    const name = { corp: "Isotonic reliability curve", kernel: "Smoothed reliability curve", bins: "Reliability diagram, one mark a bin" }[curve];
    plot = curve === "bins" ? report.reliabilityPlot(width, { marks, rows: total, choose, label: name, ...axis() })
      : report.curvePlot(width, {
        points: shown(), choose, ...axis(),
        label: `${name}: mean probability ${percent(curves.means[0])}, ${words.happened} ${percent(curves.means[1])}`,
      });
    plot.show(chosen);
    return plot.svg;
  });

  redrawHistogram = report.chart(root.querySelector("[data-chart=distribution]"), (width) => {
    const { svg: make } = report;
    const height = 190;
    const [edges, events, others] = curves.histogram[scale];
    const log = scale === "log";
    const decades = Math.round(-Math.log10(curves.floor));
    const box = { left: log ? 64 : 56, right: width - 12, top: 8, bottom: height - 44 };
    const along = (value) => (log ? 1 + Math.log10(Math.max(value, curves.floor)) / decades : value);
    const x = (value) => box.left + along(value) * (box.right - box.left);
    const up = Math.max(...events, 1e-9);
    const down = Math.max(...others, 1e-9);
    const zero = box.top + (box.bottom - box.top) / 2;
    // Each half is as tall as its tallest bar: there may be a hundred times as many rows without.
    const half = (box.bottom - box.top) / 2 - 2;
    const svg = report.canvas(width, height, `Distribution of the probability: ${percent(curves.means[0])} on average over all rows; rows with ${words.event} up, others down.`);
    edges.slice(1).forEach((edge, i) => {
      const place = { x: x(edges[i]) + 0.75, width: Math.max(x(edge) - x(edges[i]) - 1.5, 1) };
      const tall = [(events[i] / up) * half, (others[i] / down) * half];
      const label = `${percent(i === 0 ? 0 : edges[i])} to ${percent(edge)}: ${percent(events[i])} of rows with ${words.event}, ${percent(others[i])} of those without`;
      svg.append(make("g", {}, make("title", {}, label),
        make("rect", { class: "events-bar", ...place, y: zero - tall[0], height: tall[0] }),
        make("rect", { class: "histogram-bar", ...place, y: zero, height: tall[1] })));
    });
    svg.append(
      make("line", { class: "zero", x1: box.left, x2: box.right, y1: zero, y2: zero }),
      make("text", { x: box.left - 8, y: zero - half + 10, "text-anchor": "end" }, percent(up)),
      make("text", { x: box.left - 8, y: zero + half, "text-anchor": "end" }, percent(down)));
    const ticks = log ? Array.from({ length: decades + 1 }, (_, i) => 10 ** (i - decades)) : [0, 0.2, 0.4, 0.6, 0.8, 1];
    ticks.forEach((tick) => svg.append(make("text", { x: x(tick), y: box.bottom + 18, "text-anchor": "middle" }, log ? percent(tick) : `${Math.round(100 * tick)}%`)));
    svg.append(make("text", { class: "title", x: (box.left + box.right) / 2, y: height - 5, "text-anchor": "middle" }, "probability (bars: share of these rows)"));
    return svg;
  });
  root.querySelector("[data-text=probability-means]").textContent =
    `mean probability ${percent(curves.means[0])}, frequency ${percent(curves.means[1])}`;

  const update = () => {
    marks = report.curveMarks(curves, scale);
    chosen = Math.max(middle(), 0);
    slider.max = String(Math.max(shown().length - 1, 0));
    root.querySelector("[data-part=slider]").hidden = curve === "bins";
    root.querySelector("[data-key=line]").hidden = curve === "bins";
    root.querySelector("[data-key=band]").hidden = curve === "kernel" || curves.corp[0][2] === null;
    redraw();
    redrawHistogram();
    choose(chosen);
  };
  root.querySelectorAll("[name=curve]").forEach((input) => input.addEventListener("change", () => { curve = input.value; update(); }));
  root.querySelectorAll("[name=scale]").forEach((input) => input.addEventListener("change", () => { scale = input.value; update(); }));
  slider.addEventListener("input", () => choose(Number(slider.value)));
  if (!curves.kernel.length) root.querySelector("[value=kernel]").disabled = true;
  update();
});
