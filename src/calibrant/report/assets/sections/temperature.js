report.section("temperature", (root, data) => {
  const { number, percent, share, points, errorPoints, rows } = report.format;
  const BINS = 15;
  const bytes = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  // Little-endian on every machine, whatever its own order.
  const floats = (text) => {
    const view = new DataView(bytes(text).buffer);
    return Float32Array.from({ length: view.byteLength / 4 }, (_, i) => view.getFloat32(4 * i, true));
  };
  const given = data.temperature;
  const [first, last, knots] = given.knots;
  const total = given.rows;
  const normaliser = floats(given.normaliser);
  const correct = bytes(given.correct);
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / total;
  const meanGap = mean(floats(given.gaps));
  const accuracy = mean(correct);
  const meanNormaliser = Array.from({ length: knots }, (_, k) => mean(normaliser.subarray(k * total, (k + 1) * total)));

  // Lagrange's cubic through the four knots around log2 T: where to begin, and the weights.
  const cubic = (exponent) => {
    const place = ((exponent - first) / (last - first)) * (knots - 1);
    const i = Math.min(Math.max(Math.floor(place), 1), knots - 3);
    const t = place - i;
    return [i - 1, [(-t * (t - 1) * (t - 2)) / 6, ((t + 1) * (t - 1) * (t - 2)) / 2, (-(t + 1) * t * (t - 2)) / 2, ((t + 1) * t * (t - 1)) / 6]];
  };
  const nllAt = (exponent) => {
    const [from, weights] = cubic(exponent);
    return meanGap / 2 ** exponent + weights.reduce((sum, weight, j) => sum + weight * meanNormaliser[from + j], 0);
  };

  // The smallest k with P(X <= k) >= share, X binomial; logarithms, for (1 - p)^n may be 0.
  const quantile = (shareBelow, n, p) => {
    if (p <= 0 || p >= 1) return p <= 0 ? 0 : n;
    const odds = Math.log(p) - Math.log1p(-p);
    let log = n * Math.log1p(-p);
    let sum = Math.exp(log);
    let k = 0;
    while (sum < shareBelow && k < n) {
      log += Math.log((n - k) / (k + 1)) + odds;
      k += 1;
      sum += Math.exp(log);
    }
    return k;
  };
  const tempered = (exponent) => {
    const [from, weights] = cubic(exponent);
    const [a, b, c, d] = weights;
    const start = from * total;
    const bins = Array.from({ length: BINS }, (_, i) => ({ low: i / BINS, high: (i + 1) / BINS, count: 0, confidence: 0, accuracy: 0 }));
    let squares = 0;
    for (let row = 0; row < total; row += 1) {
      const f = a * normaliser[start + row] + b * normaliser[start + total + row]
        + c * normaliser[start + 2 * total + row] + d * normaliser[start + 3 * total + row];
      const confidence = Math.min(Math.exp(-f), 1);
      // Right-closed bins: a confidence on an edge, but for single precision, belongs below it.
      const bin = bins[Math.min(Math.max(Math.ceil(confidence * BINS - 2e-6) - 1, 0), BINS - 1)];
      bin.count += 1;
      bin.confidence += confidence;
      bin.accuracy += correct[row];
      squares += (confidence - correct[row]) ** 2;
    }
    const ece = bins.reduce((sum, bin) => sum + Math.abs(bin.confidence - bin.accuracy), 0) / total;
    const claimed = bins.reduce((sum, bin) => sum + bin.confidence, 0) / total;
    const gap = claimed - accuracy;
    // How far chance moves the mean of confidence − correctness.
    const chance = data.z * Math.sqrt(Math.max(squares / total - gap * gap, 0) / total);
    for (const bin of bins.filter((each) => each.count > 0)) {
      bin.confidence /= bin.count;
      bin.accuracy /= bin.count;
      [bin.accuracy_low, bin.accuracy_high] = report.wilson(bin.accuracy, bin.count);
      bin.band_low = quantile(data.tail, bin.count, bin.confidence) / bin.count;
      bin.band_high = quantile(1 - data.tail, bin.count, bin.confidence) / bin.count;
    }
    return { marks: report.binMarks(bins), ece, claimed, gap, chance, nll: nllAt(exponent) };
  };

  const slider = root.querySelector("input");
  const shown = root.querySelector("output");
  const readout = root.querySelector("[data-readout]");
  const words = root.querySelector("[data-text=bin]");
  const steps = Array.from({ length: 401 }, (_, i) => -2 + i / 100);
  const curve = steps.map(nllAt);
  const best = steps[curve.reduce((lowest, value, i) => (value < curve[lowest] ? i : lowest), 0)];
  const atOne = tempered(0);
  const kelvin = (exponent) => (2 ** exponent).toFixed(2);
  let state = atOne;
  let from = state.marks[report.heaviest(state.marks)]?.from;
  let place = null;
  let plot = null;

  const tell = () => {
    const i = state.marks.findIndex((mark) => mark.from === from);
    const mark = state.marks[i];
    plot?.show(i);
    words.textContent = mark
      ? `Confidence ${percent(mark.from)} to ${percent(mark.to)}: right ${percent(mark.y)} of the time, ${rows(mark.count)}.`
      : `Confidence ${percent(from)} to ${percent(from + 1 / BINS)}: no rows at this temperature.`;
  };
  const redraw = report.chart(root.querySelector("[data-chart=tempered]"), (width) => {
    plot = report.reliabilityPlot(width, {
      marks: state.marks, rows: total, choose: (i) => { from = state.marks[i].from; tell(); },
      label: "Reliability diagram at this temperature, one mark a bin", across: "confidence", upwards: "accuracy",
    });
    tell();
    return plot.svg;
  });

  const judgement = () => {
    const { gap, chance } = state;
    const side = gap > 0 ? "more" : "less";
    const sentence = `On average it claims ${points(Math.abs(gap)).slice(1)} points ${side} than it delivers`;
    if (Math.abs(gap) <= chance) return ["inside", `${sentence}, which could be chance.`];
    return [gap > 0 ? "over" : "under", `${sentence}.`];
  };
  const set = (exponent) => {
    state = tempered(exponent);
    slider.value = String(exponent);
    slider.setAttribute("aria-valuetext", `T = ${kelvin(exponent)}, negative log-likelihood ${number(state.nll)}, ECE ${errorPoints(state.ece)} points`);
    shown.textContent = kelvin(exponent);
    place?.(exponent);
    redraw();
    const [tone, sentence] = judgement();
    const once = (text) => `${text} at T = 1`;
    readout.replaceChildren(
      report.html("p", { class: "big" }, `T = ${kelvin(exponent)}`),
      report.facts([
        ["NLL", number(state.nll), once(number(atOne.nll))],
        ["ECE", `${errorPoints(state.ece)} points`, once(errorPoints(atOne.ece))],
        ["Mean confidence", share(state.claimed), once(share(atOne.claimed))],
        ["Accuracy", share(accuracy), "at every T"],
      ]),
      report.html("p", { class: `judgement ${tone}` }, sentence),
    );
    readout.dataset.nll = state.nll;
    readout.dataset.ece = state.ece;
    readout.dataset.confidence = state.claimed;
    readout.dataset.accuracy = accuracy;
  };

  report.chart(root.querySelector("[data-chart=tuning]"), (width) => {
    const { svg: make, scale } = report;
    const height = 132;
    // As far in as the middle of the slider's thumb, so that the two line up.
    const box = { left: 10, right: width - 10, top: 24, bottom: height - 22 };
    const x = scale(first, last, box.left, box.right);
    const least = Math.min(...curve);
    const most = Math.max(curve[200], Math.min(Math.max(...curve), least + 4 * Math.max(curve[200] - least, 0.05 * least, 1e-4)));
    const y = scale(least, most, box.bottom - 8, box.top);
    const svg = report.canvas(width, height, `Negative log-likelihood by temperature: ${number(curve[200])} at T = 1, least ${number(least)} at T = ${kelvin(best)}.`);
    svg.append(make("line", { class: "axis", x1: 0, x2: width, y1: box.bottom, y2: box.bottom }));
    for (const tick of [-2, -1, 0, 1, 2]) {
      svg.append(
        make("line", { class: "axis", x1: x(tick), x2: x(tick), y1: box.bottom, y2: box.bottom + 5 }),
        make("text", { x: x(tick), y: height - 3, "text-anchor": tick === -2 ? "start" : tick === 2 ? "end" : "middle", ...(Math.abs(tick) === 2 ? { dx: tick * 5 } : {}) }, String(2 ** tick)),
      );
    }
    const points = steps.map((step, i) => [step, curve[i]]).filter(([, value]) => value <= most + 1e-12);
    const path = points.map(([step, value], i) => `${i ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    const line = make("line", { class: "crosshair", y1: box.top - 6, y2: box.bottom });
    const dot = make("circle", { class: "pointer", r: 6 });
    const side = x(best) > width - 60 ? "end" : x(best) < 60 ? "start" : "middle";
    svg.append(
      make("line", { class: "best-tick", x1: x(best), x2: x(best), y1: box.top - 6, y2: box.bottom }),
      make("text", { class: "best-word", x: x(best), y: 12, "text-anchor": side }, `best ${kelvin(best)}`),
      make("path", { class: "curve", d: path }),
      line, dot,
    );
    place = (exponent) => {
      line.setAttribute("x1", x(exponent));
      line.setAttribute("x2", x(exponent));
      dot.setAttribute("cx", x(exponent));
      dot.setAttribute("cy", y(Math.min(nllAt(exponent), most)));
    };
    place(Number(slider.value));
    svg.addEventListener("click", (event) => {
      const across = first + ((report.place(svg, event).x - box.left) / (box.right - box.left)) * (last - first);
      set(Math.round(100 * Math.min(Math.max(across, first), last)) / 100);
    });
    return svg;
  });

  slider.addEventListener("input", () => set(Number(slider.value)));
  root.querySelector("[data-action=best]").addEventListener("click", () => set(best));
  root.querySelector("[data-action=reset]").addEventListener("click", () => set(0));
  readout.dataset.best = 2 ** best;
  set(0);
});
