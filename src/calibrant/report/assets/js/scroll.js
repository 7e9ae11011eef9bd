// Tables that scroll say so: a line above them, and a shadow on the side where more lies.
document.addEventListener("DOMContentLoaded", () => {
  "use strict";
  document.querySelectorAll(".scroll").forEach((box) => {
    const hint = document.createElement("p");
    hint.className = "scroll-hint";
    hint.setAttribute("aria-hidden", "true"); // the region has a name, and is reached by keyboard
    box.before(hint);
    const update = () => {
      const across = box.scrollWidth - box.clientWidth;
      const down = box.scrollHeight - box.clientHeight;
      const more = [across - box.scrollLeft > 2 && "right", box.scrollLeft > 2 && "left", down - box.scrollTop > 2 && "down"];
      box.dataset.more = more.filter(Boolean).join(" ");
      const words = [across > 2 && "more columns →", down > 2 && "more rows ↓"].filter(Boolean);
      hint.hidden = words.length === 0;
      hint.textContent = `Scroll for ${words.join(" and ")}`;
    };
    box.addEventListener("scroll", update, { passive: true });
    const watch = new ResizeObserver(update);
    watch.observe(box);
    if (box.firstElementChild) watch.observe(box.firstElementChild);
    update();
  });
});
// A record that is folded is printed unfolded.
addEventListener("beforeprint", () => document.querySelectorAll("details.record").forEach((each) => { each.open = true; }));
