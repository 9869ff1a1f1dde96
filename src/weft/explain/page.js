"use strict";
// Figures wider than the screen have a hint and a faded edge until you scroll to the end.
for (const box of document.querySelectorAll(".scroll")) {
  const hint = document.createElement("p");
  hint.className = "hint";
  hint.setAttribute("aria-hidden", "true");
  hint.textContent = "Scroll sideways for more \u2192";
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

// Attention: click a small map to see the weights of that head, token by token.
for (const holder of document.querySelectorAll("script.attention")) {
  const layers = JSON.parse(holder.textContent);
  const section = holder.closest("section");
  const find = (key) => {
    const [, component, layer, head] = key.match(/^grid-([a-z]+)-(\d+)-(\d+)$/);
    return [layers.filter((one) => one.component === component)[Number(layer)], Number(head)];
  };
  const weight = (layer, head, row, column) => {
    const size = layer.columns.length;
    return (layer.bytes.charCodeAt((head * layer.rows.length + row) * size + column) / 255) ** 2;
  };
  const fill = (box, tokens) => {
    box.textContent = "";
    return tokens.map((token) => {
      const span = document.createElement("span");
      span.textContent = token;
      box.append(span, document.createElement("wbr"));
      return span;
    });
  };
  const show = (panel, layer, head) => {
    const [above, below] = panel.querySelectorAll(".tokens");
    const say = panel.querySelector("output");
    const rows = fill(above, layer.rows), columns = fill(below, layer.columns);
    let at = rows.length - 1;
    const mark = (row) => {
      rows[at].classList.remove("chosen");
      at = row;
      rows[at].classList.add("chosen");
      let best = 0;
      columns.forEach((span, column) => {
        const value = weight(layer, head, at, column);
        span.style.background = `rgba(var(--ink), ${Math.sqrt(value).toFixed(3)})`;
        span.classList.toggle("dark", value > 0.2);
        span.title = value.toFixed(3);
        best = value > weight(layer, head, at, best) ? column : best;
      });
      say.textContent = `${layer.rows[at]} looks most at ${layer.columns[best]} (${weight(layer, head, at, best).toFixed(2)})`;
    };
    rows.forEach((span, row) => {
      span.addEventListener("mouseenter", () => mark(row));
      span.addEventListener("click", () => mark(row));
    });
    above.onkeydown = (event) => {
      const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!move) return;
      event.preventDefault();
      mark(Math.min(rows.length - 1, Math.max(0, at + move)));
    };
    mark(at);
  };
  for (const layer of layers) layer.bytes = atob(layer.weights);
  for (const grid of section.querySelectorAll(".weft-grid")) {
    const panel = document.createElement("div");
    panel.className = "detail";
    panel.innerHTML =
      '<p class="name"></p><p>Query: point at a token or use the arrow keys.</p><div class="tokens rows" tabindex="0"></div>' +
      '<p>Keys: the darker, the larger the weight.</p><div class="tokens"></div><output></output>';
    grid.closest("figure").after(panel);
    const maps = [...grid.querySelectorAll(".map")];
    const choose = (map) => {
      maps.forEach((one) => one.classList.toggle("chosen", one === map));
      const [layer, head] = find(map.dataset.key);
      panel.querySelector(".name").textContent = `Layer ${layer.layer}, head ${layer.heads[head]}`;
      show(panel, layer, head);
    };
    for (const map of maps) {
      map.setAttribute("tabindex", "0");
      map.setAttribute("role", "button");
      map.addEventListener("click", () => choose(map));
      map.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(map); }
      });
    }
    choose(maps[maps.length - 1]);
  }
}
