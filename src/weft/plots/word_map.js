const data = JSON.parse(document.getElementById('data').textContent), canvas = document.querySelector('canvas');
const context = canvas.getContext('2d'), search = document.querySelector('input'), said = document.querySelector('output');
const index = new Map(data.words.map((word, i) => [word, i]));
let scale = 1, shiftX = 0, shiftY = 0, chosen = -1, last = null;
const color = name => getComputedStyle(document.documentElement).getPropertyValue(name);
function place(i) {
  const size = Math.min(canvas.width, canvas.height) * .46;
  return [canvas.width / 2 + (data.x[i] * size + shiftX) * scale, canvas.height / 2 + (shiftY - data.y[i] * size) * scale];
}
function draw() {
  const ratio = window.devicePixelRatio || 1, near = new Set(chosen < 0 ? [] : [chosen, ...data.neighbors[chosen].map(n => n[0])]);
  canvas.width = canvas.clientWidth * ratio; canvas.height = canvas.clientHeight * ratio;
  const boxes = [], half = 7 * ratio;  // of the words that are written: they do not overlap
  context.font = `${12 * ratio}px system-ui, sans-serif`;
  const order = [...near, ...data.words.keys()], seen = new Set();
  for (const i of order) {
    if (seen.has(i)) continue;
    seen.add(i);
    const [x, y] = place(i);
    if (x < -50 || y < -20 || x > canvas.width + 50 || y > canvas.height + 20) continue;
    context.fillStyle = color(near.has(i) ? '--hot' : '--dot');
    context.beginPath(); context.arc(x, y, (near.has(i) ? 4 : 2) * ratio, 0, 7); context.fill();
    const right = x + 8 * ratio + context.measureText(data.words[i]).width;
    const overlaps = box => x < box[2] && right > box[0] && y - half < box[3] && y + half > box[1];
    if (!near.has(i) && boxes.some(overlaps)) continue;
    boxes.push([x, y - half, right, y + half]);
    context.fillStyle = color(near.has(i) ? '--hot' : '--ink');
    context.fillText(data.words[i], x + 5 * ratio, y + 4 * ratio);
  }
}
function choose(i) {
  chosen = i;
  said.textContent = i < 0 ? '' : `${data.words[i]}: ` + data.neighbors[i].map(n => `${data.words[n[0]]} ${n[1].toFixed(2)}`).join(', ');
  draw();
}
function nearest(event) {
  const ratio = window.devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  const px = (event.clientX - box.left) * ratio, py = (event.clientY - box.top) * ratio;
  let best = -1, distance = 15 * ratio;
  for (let i = 0; i < data.words.length; i++) {
    const [x, y] = place(i), d = Math.hypot(x - px, y - py);
    if (d < distance) { best = i; distance = d; }
  }
  return best;
}
canvas.addEventListener('wheel', event => { event.preventDefault(); scale *= event.deltaY < 0 ? 1.15 : 1 / 1.15; draw(); }, {passive: false});
canvas.addEventListener('pointerdown', event => { last = [event.clientX, event.clientY, false]; });
window.addEventListener('pointerup', event => { if (last && !last[2] && event.target === canvas) choose(nearest(event)); last = null; });
window.addEventListener('pointermove', event => {
  if (!last) return;
  const ratio = window.devicePixelRatio || 1, dx = event.clientX - last[0], dy = event.clientY - last[1];
  if (Math.abs(dx) + Math.abs(dy) < 3 && !last[2]) return;
  shiftX += dx * ratio / scale; shiftY += dy * ratio / scale; last = [event.clientX, event.clientY, true]; draw();
});
search.addEventListener('input', () => {
  const i = index.get(search.value.trim()) ?? index.get(search.value.trim().toLowerCase()) ?? -1;
  if (i >= 0) { const size = Math.min(canvas.width, canvas.height) * .46; shiftX = -data.x[i] * size; shiftY = data.y[i] * size; scale = Math.max(scale, 3); }
  choose(i);
});
window.addEventListener('resize', draw);
draw();
