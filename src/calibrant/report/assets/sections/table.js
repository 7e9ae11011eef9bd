report.section("table", (root, data) => {
  const { share, points, errorPoints, number, count, name } = report.format;
  const FIRST = 100;
  const columns = [
    ["name", "Class"], ["count", "Rows", count], ["predicted", "Predicted", count], ["recall", "Recall", share],
    ["precision", "Precision", share], ["mean_probability", "Mean prob.", share], ["frequency", "Frequency", share],
    ["gap", "Gap", points], ["nll", "NLL", number], ["ece", "ECE", errorPoints],
  ];
  const meaning = {
    count: "rows whose true class is this", predicted: "rows the model names this class", gap: "mean probability − frequency, in percentage points",
    ece: "calibration error of the class, in percentage points",
    mean_probability: "mean probability the model gives this class", frequency: "share of rows whose true class is this",
  };
  const body = root.querySelector("tbody");
  const status = root.querySelector("[data-text=shown]");
  const all = root.querySelector("[data-action=all]");
  const filter = root.querySelector("#class-filter");
  let sort = { key: "ece", down: true };
  let everything = data.classes.length <= FIRST;

  // Rows are made when first shown, and kept.
  const made = new Map();
  const row = (each) => {
    if (!made.has(each.index)) {
      const link = report.html("button", { type: "button", class: "link", dir: "auto" }, name(each.name));
      link.addEventListener("click", () => report.tell("class", each.index));
      made.set(each.index, report.html("tr", { "data-class": each.index },
        report.html("th", { scope: "row" }, data.classBins[each.index] ? link : name(each.name)),
        ...columns.slice(1).map(([key, , format]) => report.html("td", {
          class: key === "gap" ? `num ${each.gap > 0 ? "over-text" : each.gap < 0 ? "under-text" : ""}` : "num",
        }, format(each[key])))));
    }
    return made.get(each.index);
  };

  const names = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });
  const order = (a, b) => {
    const [p, q] = [a[sort.key], b[sort.key]];
    if (sort.key === "name") return (sort.down ? -1 : 1) * names.compare(p, q) || a.index - b.index;
    // What has no value goes last, whichever way the rest is sorted.
    if (p === null || q === null) return (p === null) - (q === null) || a.index - b.index;
    // Of two classes the positive one, the second, comes first.
    return p === q ? (data.classes.length === 2 ? b.index - a.index : a.index - b.index) : (p < q ? -1 : 1) * (sort.down ? -1 : 1);
  };
  const update = () => {
    const wanted = (filter?.value || "").trim().toLowerCase();
    const found = data.classes.filter((each) => each.name.toLowerCase().includes(wanted)).sort(order);
    const shown = everything ? found : found.slice(0, FIRST);
    body.replaceChildren(...shown.map(row));
    const of = `${count(data.classes.length)} classes`;
    status.textContent = shown.length === data.classes.length ? of : `Showing ${count(shown.length)} of ${of}`;
    all.hidden = shown.length === found.length;
    all.textContent = `Show all ${count(found.length)}`;
  };

  const heads = columns.map(([key, label]) => {
    const button = report.html("button", { type: "button", title: meaning[key] }, label);
    const head = report.html("th", { scope: "col", class: key === "name" ? null : "num", "data-key": key }, button);
    button.addEventListener("click", () => {
      // Names start at A; numbers start at the largest.
      sort = { key, down: sort.key === key ? !sort.down : key !== "name" };
      mark();
      update();
    });
    return head;
  });
  const mark = () => heads.forEach((head) => {
    const state = head.dataset.key === sort.key ? (sort.down ? "descending" : "ascending") : "none";
    head.setAttribute("aria-sort", state);
  });
  root.querySelector("thead tr").append(...heads);
  filter?.addEventListener("input", update);
  all.addEventListener("click", () => { everything = true; update(); });
  mark();
  update();
});
