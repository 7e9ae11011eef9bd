report.section("classes", (root, data) => {
  const { percent, share, points, errorPoints, number, rows, count, name, shorten } = report.format;
  const MOST = 20;
  const numBins = data.bins.width.length;
  // Of two classes the positive one, the second, comes first.
  const listed = data.classes.length === 2 ? [...data.classes].reverse() : data.classes;
  const worst = [...listed].sort((a, b) => (b.ece ?? -1) - (a.ece ?? -1));
  const shown = worst.slice(0, MOST);
  const choice = root.querySelector("select");
  const readout = root.querySelector("[data-readout]");
  const available = listed.filter((each) => data.classBins[each.index]);
  choice.append(...available.map((each) => report.html("option", { value: each.index }, name(each.name))));

  let current = worst.find((each) => data.classBins[each.index]) || data.classes[0];
  let marks = [];
  let chosen = 0;
  let plot = null;
  let bars = [];

  const read = () => (data.classBins[current.index] || []).map(([bin, total, mean, frequency]) => {
    const [low, high] = report.wilson(frequency, total);
    const state = mean >= low && mean <= high ? "inside" : frequency < mean ? "over" : "under";
    return {
      x: mean, y: frequency, low, high, from: bin / numBins, to: (bin + 1) / numBins, count: total, state,
      label: `Probability ${percent(bin / numBins)} to ${percent((bin + 1) / numBins)}: ${rows(total)}, mean probability ${percent(mean)}, `
        + `true for ${percent(frequency)}, ${data.level} interval ${percent(low)} to ${percent(high)}`,
    };
  });

  const describe = () => {
    const mark = marks[chosen];
    if (!mark) { readout.replaceChildren(); return; }
    readout.replaceChildren(
      report.stepper(`Bin ${chosen + 1} of ${marks.length} with rows`, (by) => choose(chosen + by)),
      report.html("p", { class: "big" }, `Probability ${percent(mark.from)} to ${percent(mark.to)}`),
      report.facts([
        ["Rows", count(mark.count)],
        ["Mean probability", share(mark.x)],
        ["True for", share(mark.y), `${share(mark.low)} to ${share(mark.high)}`],
      ]),
    );
  };
  const choose = (i) => {
    if (!marks[i]) return;
    const held = document.activeElement?.closest?.(".steps") && document.activeElement.getAttribute("aria-label");
    chosen = i;
    plot?.show(i);
    describe();
    if (held && !readout.contains(document.activeElement)) readout.querySelector(`[aria-label="${held}"]`)?.focus();
  };

  const words = () => {
    const side = current.gap > 0 ? "too much" : "too little";
    const net = current.gap === 0 ? "on average exactly right" : `on average ${errorPoints(Math.abs(current.gap))} points ${side}`;
    return [
      `${rows(current.count)} of this class (${percent(current.frequency)}); the model gives it ${percent(current.mean_probability)} of its probability, ${net}. `,
      `Recall ${share(current.recall)}, precision ${share(current.precision)}, NLL ${number(current.nll)}, ECE ${errorPoints(current.ece)} points.`,
    ];
  };

  const drawClass = report.chart(root.querySelector("[data-chart=class]"), (width) => {
    plot = report.reliabilityPlot(width, {
      marks, rows: data.rows, choose, across: "probability given to this class", upwards: "how often it is true",
      label: `Reliability of class ${name(current.name)}, one mark a bin`,
    });
    plot.show(chosen);
    return plot.svg;
  });

  const pick = (index) => {
    current = data.classes.find((each) => each.index === index) || current;
    marks = read();
    // The first bin holds the many rows of other classes; one where the class is claimed says more.
    chosen = report.heaviest(marks, marks.length > 1 ? 1 : 0);
    choice.value = String(current.index);
    root.querySelector("[data-text=class]").replaceChildren(...words());
    bars.forEach(([bar, each]) => bar.classList.toggle("chosen", each.index === current.index));
    drawClass();
    describe();
  };

  report.chart(root.querySelector("[data-chart=overview]"), (width) => {
    const { svg: make, scale } = report;
    const step = Math.min(Math.max(Math.floor(460 / shown.length), 25), 40);
    const longest = Math.max(...shown.map((each) => Math.min(name(each.name).length, 20)));
    const box = { left: Math.min(18 + longest * 7.2, width * 0.36), right: width - 10, top: 4, bottom: 4 + step * shown.length };
    const height = box.bottom + 46;
    const reach = Math.max(...shown.map((each) => Math.max(each.ece ?? 0, Math.abs(each.gap ?? 0))), 1e-9) * 1.06;
    const left = shown.some((each) => each.gap < 0) ? -reach : -0.08 * reach;
    const right = shown.some((each) => !(each.gap < 0)) ? reach : 0.08 * reach;
    const x = scale(left, right, box.left, box.right);
    const svg = report.canvas(width, height, `Calibration error of ${shown.length} classes, worst first: `
      + shown.slice(0, 5).map((each) => `${name(each.name)} ${errorPoints(each.ece)} points`).join(", "));
    for (const tick of report.ticks(left, right, Math.max(2, Math.round((box.right - box.left) / 90)))) {
      const isZero = Math.abs(tick) < 1e-12;
      svg.append(
        make("line", { class: "grid", x1: x(tick), x2: x(tick), y1: box.top, y2: box.bottom }),
        make("text", { x: x(tick), y: box.bottom + 18, "text-anchor": "middle" }, isZero ? "0" : errorPoints(Math.abs(tick)).replace(/\.0+$/, "")),
      );
    }
    bars = shown.map((each, i) => {
      const top = box.top + i * step;
      const side = each.gap < 0 ? -1 : 1;
      const bar = (kind, value, thick) => make("rect", {
        class: kind, x: Math.min(x(0), x(value)), width: Math.abs(x(value) - x(0)), y: top + (step - thick) / 2, height: thick,
      });
      const text = name(each.name);
      const group = make("g", { class: `class-row ${side < 0 ? "under" : "over"}`, "data-class": each.index },
        make("title", {}, `${text}: ECE ${errorPoints(each.ece)}, net gap ${points(each.gap)} points`),
        make("rect", { class: "ground", x: 0, width, y: top, height: step, rx: 4 }),
        make("text", { x: box.left - 9, y: top + step / 2 + 4.5, "text-anchor": "end" }, shorten(text, Math.max(6, Math.floor((box.left - 12) / 7)))),
        bar("pale", side * (each.ece ?? 0), 15), bar("net", each.gap ?? 0, 7));
      group.addEventListener("click", () => pick(each.index));
      return [group, each];
    });
    bars.forEach(([bar, each]) => {
      bar.classList.toggle("chosen", each.index === current.index);
      svg.append(bar);
    });
    svg.append(
      make("line", { class: "zero", x1: x(0), x2: x(0), y1: box.top, y2: box.bottom }),
      make("text", { class: "title", x: box.left, y: height - 5 }, "◂ too little, points"),
      make("text", { class: "title", x: box.right, y: height - 5, "text-anchor": "end" }, "too much ▸"),
    );
    return svg;
  });

  if (data.classes.length > MOST) {
    root.querySelector("[data-text=overview]").textContent = `The ${MOST} worst of ${count(data.classes.length)} classes`;
  }
  choice.addEventListener("change", () => pick(Number(choice.value)));
  root.querySelectorAll("[data-step]").forEach((button) => button.addEventListener("click", () => {
    const next = choice.selectedIndex + Number(button.dataset.step);
    if (choice.options[next]) pick(Number(choice.options[next].value));
  }));
  report.on("class", (index) => {
    pick(index);
    root.scrollIntoView();
    choice.focus({ preventScroll: true });
  });
  pick(current.index);
});
