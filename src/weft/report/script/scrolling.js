// Tables wider than the screen have a hint and a faded edge until you scroll to the end.

function addScrollHint(box) {
  const hint = h("p", { class: "hint", "aria-hidden": "true" }, "Scroll sideways for more \u2192");
  const update = () => {
    const more = box.scrollWidth - box.clientWidth - box.scrollLeft > 4;
    box.classList.toggle("more", more);
    hint.hidden = !more;
  };
  box.before(hint);
  box.addEventListener("scroll", update);
  new ResizeObserver(update).observe(box);
  update();
}
