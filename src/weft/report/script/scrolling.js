// Tables wider than the screen have a hint and a faded edge until you scroll to the end.

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
