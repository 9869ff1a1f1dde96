// What is wider than the screen says so: its edge fades, and a line above it tells, until the end is seen.

function hinted(box) {
  const hint = h("p", { class: "hint", "aria-hidden": "true" }, "Scroll sideways for more \u2192");
  const tell = () => {
    const more = box.scrollWidth - box.clientWidth - box.scrollLeft > 4;
    box.classList.toggle("more", more);
    hint.hidden = !more;
  };
  box.before(hint);
  box.addEventListener("scroll", tell);
  new ResizeObserver(tell).observe(box);
  tell();
}
