// Numbers as a reader wants to see them; the same rules as formatting.py.
report.format = (() => {
  const NOTHING = "–";
  const missing = (value) => value === null || value === undefined || Number.isNaN(value);
  const minus = (text) => text.replace("-", "−");
  // toPrecision writes 0.40 and 1.0e-7; both are wanted without the padding.
  const short = (value, digits) => String(Number(value.toPrecision(digits)));

  const number = (value) => {
    if (missing(value)) return NOTHING;
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
    const size = Math.abs(value);
    if (size < 1e-12) return "0.0000"; // what rounding leaves
    if (size >= 1000) return minus(Math.round(value).toLocaleString("en-US"));
    if (size >= 1) return minus(value.toFixed(3));
    if (size >= 0.001 || size === 0) return minus(value.toFixed(4));
    return minus(short(value, 2));
  };
  const percent = (share) => {
    if (missing(share)) return NOTHING;
    const hundredths = 100 * share;
    const size = Math.abs(hundredths);
    if (size === 0) return "0%";
    let text;
    if (size < 1) text = short(hundredths, 2);
    else if (size > 99 && size < 100) text = hundredths.toFixed(2);
    else text = hundredths.toFixed(1).replace(/\.0$/, "");
    return minus(text) + "%";
  };
  // One decimal always, for columns of figures.
  const share = (value) => {
    const text = percent(value);
    return /^−?\d+%$/.test(text) ? text.replace("%", ".0%") : text;
  };
  const points = (share) => {
    if (missing(share)) return NOTHING;
    const hundredths = 100 * share;
    const size = Math.abs(hundredths);
    const text = size >= 1 ? hundredths.toFixed(1) : size >= 0.01 ? hundredths.toFixed(2) : short(hundredths, 2);
    return (hundredths >= 0 ? "+" : "") + minus(text);
  };
  // Calibration errors: points without a sign.
  const errorPoints = (share) => points(share).replace("+", "");
  const count = (value) => (missing(value) ? NOTHING : value.toLocaleString("en-US"));
  const rows = (value) => `${count(value)} ${value === 1 ? "row" : "rows"}`;
  const name = (text) => (text.trim() === "" ? "(no name)" : text);
  const shorten = (text, longest) => (text.length <= longest ? text : text.slice(0, longest - 1).trimEnd() + "…");
  return { number, percent, share, points, errorPoints, count, rows, name, shorten };
})();
report.upper = (text) => text.charAt(0).toUpperCase() + text.slice(1);
