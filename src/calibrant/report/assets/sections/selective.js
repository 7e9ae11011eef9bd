report.section("selective", (root, data) => {
  const { percent, count } = report.format;
  const curve = data.riskCoverage;
  const error = curve[curve.length - 1].risk;
  const slider = root.querySelector("input");
  const readout = root.querySelector("[data-readout]");
  const nearest = (coverage) => curve.reduce((best, point, i) =>
    (Math.abs(point.coverage - coverage) < Math.abs(curve[best].coverage - coverage) ? i : best), 0);
  let chosen = nearest(0.8);
  let mark = null;

  const choose = (i) => {
    chosen = i;
    const point = curve[i];
    slider.value = String(i);
    slider.setAttribute("aria-valuetext", `${percent(point.coverage)} kept, error rate ${percent(point.risk)}`);
    mark?.(point);
    readout.replaceChildren(
      report.html("p", { class: "big" }, `Keep ${percent(point.coverage)}, error ${percent(point.risk)}`),
      report.facts([
        ["Accept where confidence is at least", percent(point.threshold)],
        ["Rows kept", count(Math.round(point.coverage * data.rows)), `of ${count(data.rows)}`],
        ["Error rate among them", percent(point.risk), `${percent(error)} when all are kept`],
      ]),
    );
  };

  report.chart(root.querySelector("[data-chart]"), (width) => {
    const { svg: make, scale } = report;
    const height = Math.round(Math.min(Math.max(width * 0.56, 260), 380));
    const box = { left: 54, right: width - 12, top: 12, bottom: height - 46 };
    const highest = Math.max(...curve.map((point) => point.risk), 0.005) * 1.08;
    const x = scale(0, 1, box.left, box.right);
    const y = scale(0, highest, box.bottom, box.top);
    const svg = report.canvas(width, height, `Risk-coverage curve: error rate ${percent(error)} over all rows, ${percent(curve[nearest(0.8)].risk)} among the most confident 80%.`);
    for (const tick of report.ticks(0, highest, 4)) {
      svg.append(
        make("line", { class: tick === 0 ? "axis" : "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }),
        make("text", { x: box.left - 8, y: y(tick) + 4, "text-anchor": "end" }, percent(tick)),
      );
    }
    for (const tick of [0, 0.2, 0.4, 0.6, 0.8, 1]) {
      svg.append(
        make("line", { class: "grid", x1: x(tick), x2: x(tick), y1: box.top, y2: box.bottom }),
        make("text", { x: x(tick), y: box.bottom + 18, "text-anchor": "middle" }, `${Math.round(100 * tick)}%`),
      );
    }
    const path = curve.map((point, i) => `${i ? "L" : "M"}${x(point.coverage).toFixed(1)} ${y(point.risk).toFixed(1)}`).join("");
    // Turning away every wrong row first leaves max(0, 1 - (1 - error) / coverage).
    const best = Array.from({ length: 201 }, (_, i) => i / 200).filter((c) => c > 0).map((c, i) =>
      `${i ? "L" : "M"}${x(c).toFixed(1)} ${y(Math.max(0, 1 - (1 - error) / c)).toFixed(1)}`).join("");
    const line = make("line", { class: "crosshair", y1: box.top, y2: box.bottom });
    const dot = make("circle", { class: "pointer", r: 6 });
    svg.append(
      make("path", { class: "curve-area", d: `${path}L${x(1)} ${box.bottom}L${x(curve[0].coverage)} ${box.bottom}Z` }),
      make("line", { class: "chance", x1: box.left, x2: box.right, y1: y(error), y2: y(error) }),
      make("path", { class: "best", d: best }),
      make("path", { class: "curve", d: path }),
      line, dot,
      make("text", { class: "title", x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, "coverage: share of rows kept"),
      make("text", { class: "title", transform: `translate(11 ${(box.top + box.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, "error rate among them"),
    );
    mark = (point) => {
      line.setAttribute("x1", x(point.coverage));
      line.setAttribute("x2", x(point.coverage));
      dot.setAttribute("cx", x(point.coverage));
      dot.setAttribute("cy", y(point.risk));
    };
    mark(curve[chosen]);
    report.follow(svg, (place) => choose(nearest((place.x - box.left) / (box.right - box.left))));
    return svg;
  });

  slider.max = String(curve.length - 1);
  slider.addEventListener("input", () => choose(Number(slider.value)));
  choose(chosen);
});
