// Making elements, scales and charts that follow the width of the page.
(() => {
  const fill = (element, attributes, children) => {
    for (const [key, value] of Object.entries(attributes || {})) {
      if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
    }
    // Strings become text nodes: a name is never read as markup.
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  };
  report.html = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  report.svg = (tag, attributes, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

  report.scale = (from, to, start, end) => (value) => start + ((value - from) / (to - from)) * (end - start);

  // Round steps that cut [from, to] into about `wanted` parts.
  report.ticks = (from, to, wanted) => {
    const ticks = cut(from, to, wanted);
    return ticks.length > 1 || wanted > 8 ? ticks : report.ticks(from, to, wanted + 1);
  };
  const cut = (from, to, wanted) => {
    const rough = (to - from) / wanted;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
    const ticks = [];
    for (let i = Math.ceil(from / step - 1e-9); i * step <= to + step * 1e-9; i += 1) ticks.push(i * step);
    return ticks;
  };

  // draw(width) returns an <svg>; it is called again when the host's width changes.
  report.chart = (host, draw) => {
    let width = 0;
    const redraw = () => {
      width = host.clientWidth;
      if (width > 0) host.replaceChildren(draw(width));
    };
    new ResizeObserver(() => {
      if (host.clientWidth !== width) requestAnimationFrame(redraw);
    }).observe(host);
    redraw();
    return redraw;
  };

  report.canvas = (width, height, label, role = "img") =>
    report.svg("svg", { viewBox: `0 0 ${width} ${height}`, role, "aria-label": label });

  // The pointer's place in the units of the viewBox, whatever size the picture is shown at.
  report.place = (svg, event) => {
    const box = svg.getBoundingClientRect();
    const view = svg.viewBox.baseVal;
    return {
      x: ((event.clientX - box.left) / box.width) * view.width,
      y: ((event.clientY - box.top) / box.height) * view.height,
    };
  };

  // Calls move(place) as a mouse passes over, and where a finger or pen taps.
  report.follow = (svg, move) => {
    const react = (event) => move(report.place(svg, event));
    svg.addEventListener("pointermove", (event) => { if (event.pointerType === "mouse") react(event); });
    svg.addEventListener("click", react);
  };

  report.facts = (pairs) => report.html("dl", {}, ...pairs.map(([term, value, detail]) =>
    report.html("div", {}, report.html("dt", {}, term),
      report.html("dd", {}, value, detail ? report.html("small", {}, detail) : null))));

  // The head of a readout: where we are, and buttons to the neighbours.
  report.stepper = (text, step) => {
    const button = (label, sign, by) => {
      const made = report.html("button", { type: "button", class: "quiet", "aria-label": label }, sign);
      made.addEventListener("click", () => step(by));
      return made;
    };
    return report.html("div", { class: "readout-head" }, report.html("span", {}, text),
      report.html("span", { class: "steps" }, button("Previous bin", "‹", -1), button("Next bin", "›", 1)));
  };
})();
