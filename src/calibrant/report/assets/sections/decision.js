report.section("decision", (root, data) => {
  const { percent, number } = report.format;
  const curve = data.curves.decision;
  const slider = root.querySelector("input");
  const readout = root.querySelector("[data-readout]");
  const last = curve[curve.length - 1][0];
  let chosen = Math.round(curve.length / 4);
  let mark = null;

  const choose = (i) => {
    chosen = i;
    const [threshold, model, all, treated] = curve[i];
    slider.value = String(i);
    slider.setAttribute("aria-valuetext", `threshold ${percent(threshold)}, net benefit ${number(model)}`);
    mark?.(i);
    const best = model >= Math.max(all, 0) - 1e-12;
    const useful = model > Math.max(all, 0) + 1e-12;
    const rival = all > 0 ? "acting on all rows" : "acting on none";
    readout.replaceChildren(
      report.html("p", { class: "big" }, `Act from ${percent(threshold)}`),
      report.facts([
        ["Net benefit", number(model)],
        ["Acting on all rows", number(all)],
        ["Rows acted on", percent(treated)],
      ]),
      report.html("p", { class: `judgement ${useful ? "under" : best ? "inside" : "over"}` },
        useful ? "Better than acting on all rows or on none." : best ? `No better than ${rival}.` : `Worse than ${rival}.`));
  };

  report.chart(root.querySelector("[data-chart]"), (width) => {
    const { svg: make, scale } = report;
    const height = Math.round(Math.min(Math.max(width * 0.56, 260), 380));
    const box = { left: 70, right: width - 12, top: 12, bottom: height - 46 };
    const most = Math.max(...curve.map(([, model]) => model), curve[0][2], 1e-12);
    const highest = 1.08 * most;
    const lowest = -0.3 * most;
    const x = scale(0, last, box.left, box.right);
    const y = scale(lowest, highest, box.bottom, box.top);
    const svg = report.canvas(width, height, `Decision curve: net benefit over thresholds from 0% to ${percent(last)}; at ${percent(curve[chosen][0])} ${number(curve[chosen][1])}, acting on all rows ${number(curve[chosen][2])}.`);
    for (const tick of report.ticks(lowest, highest, 4)) {
      svg.append(
        make("line", { class: "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }),
        make("text", { x: box.left - 8, y: y(tick) + 4, "text-anchor": "end" }, Math.abs(tick) < 1e-12 ? "0" : number(tick)),
      );
    }
    for (const tick of report.ticks(0, last, width < 500 ? 4 : 6)) {
      svg.append(
        make("line", { class: "grid", x1: x(tick), x2: x(tick), y1: box.top, y2: box.bottom }),
        make("text", { x: x(tick), y: box.bottom + 18, "text-anchor": "middle" }, percent(tick)),
      );
    }
    // What falls below the picture ends where it leaves it.
    const path = (column) => {
      const steps = [];
      for (let i = 0; i < curve.length; i += 1) {
        const [t, value] = [curve[i][0], curve[i][column]];
        const previous = i ? curve[i - 1] : null;
        if (value >= lowest) {
          if (previous && previous[column] < lowest) {
            const part = (lowest - previous[column]) / (value - previous[column]);
            steps.push(["M", previous[0] + part * (t - previous[0]), lowest]);
          }
          steps.push([steps.length ? "L" : "M", t, value]);
        } else if (previous && previous[column] >= lowest) {
          const part = (previous[column] - lowest) / (previous[column] - value);
          steps.push(["L", previous[0] + part * (t - previous[0]), lowest]);
        }
      }
      return steps.map(([to, t, value]) => `${to}${x(t).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    };
    const line = make("line", { class: "crosshair", y1: box.top, y2: box.bottom });
    const dot = make("circle", { class: "pointer", r: 6 });
    svg.append(
      make("line", { class: "best", x1: box.left, x2: box.right, y1: y(0), y2: y(0) }),
      make("path", { class: "chance", d: path(2), fill: "none" }),
      make("path", { class: "curve", d: path(1) }),
      line, dot,
      make("text", { class: "title", x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, "threshold"),
      make("text", { class: "title", transform: `translate(11 ${(box.top + box.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, "net benefit"),
    );
    mark = (i) => {
      const [threshold, model] = curve[i];
      line.setAttribute("x1", x(threshold));
      line.setAttribute("x2", x(threshold));
      dot.setAttribute("cx", x(threshold));
      dot.setAttribute("cy", y(Math.max(model, lowest)));
    };
    mark(chosen);
    report.follow(svg, (place) => {
      const wanted = ((place.x - box.left) / (box.right - box.left)) * last;
      choose(curve.reduce((nearest, [t], i) => (Math.abs(t - wanted) < Math.abs(curve[nearest][0] - wanted) ? i : nearest), 0));
    });
    return svg;
  });
  slider.max = String(curve.length - 1);
  slider.addEventListener("input", () => choose(Number(slider.value)));
  choose(chosen);
});
