"use strict";
// A figure wider than the screen has a hint and a faded edge until you scroll to its end.
for (const box of document.querySelectorAll(".scroll")) {
  const hint = document.createElement("p");
  hint.className = "hint";
  hint.setAttribute("aria-hidden", "true");
  hint.textContent = "Scroll sideways for more \u2192";
  const update = () => {
    const hasMore = box.scrollWidth - box.clientWidth - box.scrollLeft > 4;
    box.classList.toggle("has-more", hasMore);
    hint.hidden = !hasMore;
  };
  box.before(hint);
  box.addEventListener("scroll", update);
  new ResizeObserver(update).observe(box);
  update();
}

// Attention: select the map of a head to see its weights token by token.
for (const script of document.querySelectorAll("script.attention")) {
  const layers = JSON.parse(script.textContent);
  for (const layer of layers) layer.bytes = atob(layer.weights);
  const section = script.closest("section");

  const findHead = (key) => {
    const [, component, layer, head] = key.match(/^grid-([a-z]+)-(\d+)-(\d+)$/);
    return [layers.filter((entry) => entry.component === component)[Number(layer)], Number(head)];
  };
  // a byte is the square root of a weight, scaled to 255
  const getWeight = (layer, head, row, column) => {
    const index = (head * layer.rows.length + row) * layer.columns.length + column;
    return (layer.bytes.charCodeAt(index) / 255) ** 2;
  };
  const renderTokens = (box, tokens) => {
    box.textContent = "";
    return tokens.map((token) => {
      const span = document.createElement("span");
      span.textContent = token;
      box.append(span, document.createElement("wbr"));
      return span;
    });
  };
  const renderHead = (panel, layer, head) => {
    const queryBox = panel.querySelector(".queries"), output = panel.querySelector("output");
    const queries = renderTokens(queryBox, layer.rows), keys = renderTokens(panel.querySelector(".keys"), layer.columns);
    let selected = queries.length - 1;
    const select = (row) => {
      queries[selected].classList.remove("selected");
      selected = row;
      queries[row].classList.add("selected");
      let best = 0;
      keys.forEach((span, column) => {
        const weight = getWeight(layer, head, row, column);
        span.style.background = `rgba(var(--ink), ${Math.sqrt(weight).toFixed(3)})`;
        span.classList.toggle("dark", weight > 0.2);
        span.title = weight.toFixed(3);
        if (weight > getWeight(layer, head, row, best)) best = column;
      });
      const weight = getWeight(layer, head, row, best).toFixed(2);
      output.textContent = `${layer.rows[row]} attends most to ${layer.columns[best]} (${weight})`;
    };
    queries.forEach((span, row) => {
      span.addEventListener("mouseenter", () => select(row));
      span.addEventListener("click", () => select(row));
    });
    queryBox.onkeydown = (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      select(Math.min(queries.length - 1, Math.max(0, selected + step)));
    };
    select(selected);
  };

  for (const grid of section.querySelectorAll(".weft-grid")) {
    const panel = document.createElement("div");
    panel.className = "head-panel";
    panel.innerHTML =
      '<p class="head-name"></p><p>Query: point at a token or use the arrow keys.</p>' +
      '<div class="tokens queries" tabindex="0"></div>' +
      '<p>Keys: the darker, the larger the weight.</p><div class="tokens keys"></div><output></output>';
    grid.closest("figure").after(panel);
    const maps = [...grid.querySelectorAll(".map")];
    const selectMap = (map) => {
      for (const other of maps) other.classList.toggle("selected", other === map);
      const [layer, head] = findHead(map.dataset.key);
      panel.querySelector(".head-name").textContent = `Layer ${layer.layer}, head ${layer.heads[head]}`;
      renderHead(panel, layer, head);
    };
    for (const map of maps) {
      map.setAttribute("tabindex", "0");
      map.setAttribute("role", "button");
      map.addEventListener("click", () => selectMap(map));
      map.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); selectMap(map); }
      });
    }
    selectMap(maps[maps.length - 1]);
  }
}
