// Wilson's interval of a share (1927), which stays inside [0, 1] and holds up for few rows.
report.wilson = (rate, total) => {
  const { z } = report.data;
  const centre = (rate + (z * z) / (2 * total)) / (1 + (z * z) / total);
  const half = (z / (1 + (z * z) / total)) * Math.sqrt((rate * (1 - rate)) / total + (z * z) / (4 * total * total));
  return [Math.max(centre - half, 0), Math.min(centre + half, 1)];
};

// Bins of the top confidence as the marks of a reliability plot; empty ones have none.
report.binMarks = (bins) => {
  const { percent, rows } = report.format;
  return bins.filter((bin) => bin.count > 0).map((bin) => {
    const inside = bin.accuracy >= bin.band_low && bin.accuracy <= bin.band_high;
    const state = inside ? "inside" : bin.accuracy < bin.confidence ? "over" : "under";
    return {
      ...bin, state, x: bin.confidence, y: bin.accuracy, low: bin.accuracy_low, high: bin.accuracy_high,
      bandLow: bin.band_low, bandHigh: bin.band_high, from: bin.low, to: bin.high,
      label: `${report.upper(report.data.words.claimed)} ${percent(bin.low)} to ${percent(bin.high)}: ${rows(bin.count)}, mean ${report.data.words.claimed} ${percent(bin.confidence)}, `
        + `${report.data.words.happened} ${percent(bin.accuracy)}, ${report.data.level} interval ${percent(bin.accuracy_low)} to ${percent(bin.accuracy_high)}, `
        + `${inside ? "inside" : "outside"} the range of a calibrated model`,
    };
  });
};

// The bins of the curves' data as marks; without a band nothing is said about chance.
report.curveMarks = (curves, scale) => {
  const { percent, rows } = report.format;
  const { words } = report.data;
  return curves.bins[scale].map(([from, to, count, x, y, bandLow, bandHigh]) => {
    const judged = bandLow !== null;
    const inside = !judged || (y >= bandLow && y <= bandHigh);
    const state = inside ? "inside" : y < x ? "over" : "under";
    return {
      from, to, count, x, y, bandLow, bandHigh, state,
      label: `${report.upper(words.claimed)} ${percent(from)} to ${percent(to)}: ${rows(count)}, mean ${words.claimed} ${percent(x)}, `
        + `${words.happened} ${percent(y)}${judged ? `, ${inside ? "inside" : "outside"} the range of a calibrated model` : ""}`,
    };
  });
};

// Axes of probability, linear or logarithmic from a floor on, with grid, ticks and titles.
// Returns {x, y, box}; values below the floor are drawn at the edge.
report.probabilityAxes = (svg, width, height, { across, upwards, scale = "linear", floor = 0 }) => {
  const { svg: make } = report;
  const { percent } = report.format;
  const log = scale === "log";
  const box = { left: log ? 64 : 56, right: width - 12, top: 12, bottom: height - 46 };
  const decades = log ? Math.round(-Math.log10(floor)) : 0;
  const along = (value) => (log ? 1 + Math.log10(Math.min(Math.max(value, floor), 1)) / decades : value);
  const x = (value) => box.left + along(value) * (box.right - box.left);
  const y = (value) => box.bottom - along(value) * (box.bottom - box.top);
  const ticks = log ? Array.from({ length: decades + 1 }, (_, i) => 10 ** (i - decades)) : [0, 0.2, 0.4, 0.6, 0.8, 1];
  ticks.forEach((tick, i) => {
    const text = log ? percent(tick) : `${Math.round(100 * tick)}%`;
    svg.append(
      make("line", { class: "grid", x1: x(tick), x2: x(tick), y1: box.top, y2: box.bottom }),
      make("line", { class: i === 0 ? "axis" : "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }),
      make("text", { x: x(tick), y: box.bottom + 18, "text-anchor": "middle" }, text),
      make("text", { x: box.left - 8, y: y(tick) + 4, "text-anchor": "end" }, text),
    );
  });
  const longest = Math.floor((box.bottom - box.top) / 6.6);
  svg.append(
    make("text", { class: "title", x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, across),
    make("text", { class: "title", transform: `translate(11 ${(box.top + box.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, report.format.shorten(upwards, longest)),
  );
  return { x, y, box };
};
report.plotHeight = (width) => Math.round(Math.min(Math.max(width * 0.74, 290), 470));

// A curve of what happened over the probability, with a band.
//   points: [[probability, frequency, low, high]], low and high null without a band
//   choose(i): called as the reader points at point i
// Returns {svg, show(i)}.
report.curvePlot = (width, { points, label, choose, ...axis }) => {
  const { svg: make } = report;
  const height = report.plotHeight(width);
  const svg = report.canvas(width, height, label);
  const { x, y, box } = report.probabilityAxes(svg, width, height, axis);
  const path = (places) => places.map(([p, v], i) => `${i ? "L" : "M"}${x(p).toFixed(1)} ${y(v).toFixed(1)}`).join("");
  const banded = points.filter((point) => Number.isFinite(point[2]));
  if (banded.length) {
    const around = [...banded.map(([p, , , high]) => [p, high]), ...banded.map(([p, , low]) => [p, low]).reverse()];
    svg.append(make("path", { class: "band", d: `${path(around)}Z` }));
  }
  const from = axis.scale === "log" ? axis.floor : 0;
  svg.append(make("line", { class: "diagonal", x1: x(from), y1: y(from), x2: x(1), y2: y(1) }));
  const side = ([, v, low, high]) => (!Number.isFinite(low) ? "" : v < low ? "over" : v > high ? "under" : "");
  let run = [];
  const close = () => {
    if (run.length > 0) svg.append(make("path", { class: `away ${side(run[0])}`, d: path(run.length > 1 ? run : [run[0], run[0]]) }));
    run = [];
  };
  for (const point of points) {
    if (run.length && side(point) !== side(run[0])) close();
    if (side(point)) run.push(point);
  }
  close();
  svg.append(make("path", { class: "curve ink", d: path(points) }));
  const line = make("line", { class: "crosshair", y1: box.top, y2: box.bottom });
  const dot = make("circle", { class: "pointer ink", r: 5.5 });
  svg.append(line, dot);
  report.follow(svg, (place) => {
    let nearest = 0;
    points.forEach(([p], i) => { if (Math.abs(x(p) - place.x) < Math.abs(x(points[nearest][0]) - place.x)) nearest = i; });
    choose(nearest);
  });
  const show = (i) => {
    const [p, v] = points[i];
    line.setAttribute("x1", x(p));
    line.setAttribute("x2", x(p));
    dot.setAttribute("cx", x(p));
    dot.setAttribute("cy", y(v));
  };
  return { svg, show };
};

// The mark that adds most to the ECE, among those from the first wanted on.
report.heaviest = (marks, first = 0) => {
  const weight = (mark) => mark.count * Math.abs(mark.x - mark.y);
  let best = first;
  marks.forEach((mark, i) => { if (i > first && weight(mark) > weight(marks[best])) best = i; });
  return best;
};

// A reliability plot: claimed probability across, what happened upwards. Used for the top
// confidence and for single classes.
//   marks: [{x, y, low, high, bandLow, bandHigh, from, to, count, state, label}]
//   choose(i): called when the reader points at, taps or focuses mark i
// Returns {svg, show(i)}.
report.reliabilityPlot = (width, { marks, rows, label, choose, ...axis }) => {
  const { svg: make } = report;
  const height = report.plotHeight(width);
  const svg = report.canvas(width, height, label, "group");
  const { x, y, box } = report.probabilityAxes(svg, width, height, axis);
  const from = axis.scale === "log" ? axis.floor : 0;
  const column = make("rect", { class: "focus-column", y: box.top, height: box.bottom - box.top, width: 0 });
  svg.append(column);
  for (const mark of marks.filter((each) => Number.isFinite(each.bandLow))) {
    svg.append(make("rect", {
      class: "band", x: x(mark.from), width: Math.max(x(mark.to) - x(mark.from), 1.5),
      y: y(mark.bandHigh), height: Math.max(y(mark.bandLow) - y(mark.bandHigh), 1.5),
    }));
  }
  svg.append(make("line", { class: "diagonal", x1: x(from), y1: y(from), x2: x(1), y2: y(1) }));

  const list = make("g", { role: "listbox", "aria-label": label, "aria-orientation": "horizontal" });
  const drawn = marks.map((mark, i) => {
    const radius = 3.5 + 6 * Math.sqrt(mark.count / Math.max(rows, 1));
    const group = make("g", {
      class: `mark ${mark.state}`, role: "option", tabindex: -1, "aria-label": mark.label, "aria-selected": "false", "data-mark": i,
    },
    make("line", { class: "gap", x1: x(mark.x), x2: x(mark.x), y1: y(mark.x), y2: y(mark.y) }),
    Number.isFinite(mark.low)
      ? make("line", { class: "interval", x1: x(mark.x), x2: x(mark.x), y1: y(mark.low), y2: y(mark.high) }) : null,
    make("circle", { class: "halo", cx: x(mark.x), cy: y(mark.y), r: radius + 4 }),
    make("circle", { class: "dot", cx: x(mark.x), cy: y(mark.y), r: radius }));
    group.addEventListener("focus", () => choose(i));
    group.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      const next = event.key === "Home" ? 0 : event.key === "End" ? marks.length - 1 : i + (by || NaN);
      if (drawn[next]) { event.preventDefault(); drawn[next].focus(); }
    });
    return group;
  });
  list.append(...drawn);
  svg.append(list);

  // Mostly by column, a little by height: marks that crowd at one side can still be told apart.
  report.follow(svg, (place) => {
    let nearest = -1;
    let least = Infinity;
    marks.forEach((mark, i) => {
      const distance = (x(mark.x) - place.x) ** 2 + 0.2 * (y(mark.y) - place.y) ** 2;
      if (distance < least) { least = distance; nearest = i; }
    });
    if (nearest >= 0) choose(nearest);
  });

  const show = (chosen) => {
    drawn.forEach((group, i) => {
      group.classList.toggle("chosen", i === chosen);
      group.setAttribute("aria-selected", String(i === chosen));
      group.setAttribute("tabindex", i === chosen ? 0 : -1);
    });
    const mark = marks[chosen];
    column.setAttribute("x", mark ? x(mark.from) : 0);
    column.setAttribute("width", mark ? Math.max(x(mark.to) - x(mark.from), 2) : 0);
  };
  return { svg, show };
};
