// Lays the visible part of a Graph out and draws it. Knows pixels and nodes; what is chosen comes from page.js.

const ROW = 20, FONT = 12, NARROWEST = 0.4, PAD = 4;
const KIND_COLOURS = ["#8fbff0", "#f2c462", "#dd8a63", "#b4bcc6", "#6fc7a5"]; // python, native, kernel, wait, device
const RISE = [178, 24, 43], FALL = [33, 102, 172];

class Flame {
  constructor(scroller, canvas) {
    Object.assign(this, { scroller, canvas, pen: canvas.getContext("2d"), rows: [], hit: null, cursor: null, hovered: null });
    this.rest = scroller.querySelector(".rest");
    this.upward = false;
    this.colour = "kind";
    scroller.addEventListener("scroll", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  show(graph, focus) {
    this.graph = graph;
    this.focus = focus;
    this.layout();
  }

  // Rectangles by depth: what is above the focus is as wide as the picture.
  layout() {
    const width = this.width = Math.max(50, this.scroller.clientWidth), rows = this.rows = [];
    const put = (node, x, w) => (rows[node.depth] ??= []).push({ node, x, w });
    for (let node = this.focus.parent; node; node = node.parent) put(node, 0, width);
    const open = [{ node: this.focus, x: 0, w: width }];
    while (open.length) {
      const { node, x, w } = open.pop();
      put(node, x, w);
      const scale = node.width > 0 ? w / node.width : 0;
      let at = x;
      for (const kid of this.graph.children(node)) {
        const wide = kid.width * scale;
        if (wide >= NARROWEST) open.push({ node: kid, x: at, w: wide });
        at += wide;
      }
    }
    for (const row of rows) row.sort((p, q) => p.x - q.x);
    const tall = rows.length * ROW, room = Math.min(tall, Math.max(220, Math.round(innerHeight * 0.72)));
    this.height = room;
    this.rest.style.height = `${tall - room}px`;
    const sharp = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * sharp);
    this.canvas.height = Math.round(room * sharp);
    this.canvas.style.height = `${room}px`;
    this.scroller.style.height = `${room}px`;
    this.draw();
  }

  top(depth) { return (this.upward ? this.rows.length - 1 - depth : depth) * ROW; }

  rectAt(x, y) {
    const row = Math.floor((y + this.scroller.scrollTop) / ROW);
    const depth = this.upward ? this.rows.length - 1 - row : row;
    return (this.rows[depth] || []).find((rect) => rect.x <= x && x < Math.max(rect.x + rect.w, rect.x + 1));
  }

  rectOf(node) { return node && (this.rows[node.depth] || []).find((rect) => rect.node === node); }

  reveal(node) {
    const top = this.top(node.depth), { scroller } = this;
    if (top < scroller.scrollTop) scroller.scrollTop = top;
    else if (top + ROW > scroller.scrollTop + this.height) scroller.scrollTop = top + ROW - this.height;
  }

  draw() {
    if (!this.graph) return;
    const { pen } = this, style = getComputedStyle(document.documentElement), sharp = devicePixelRatio || 1;
    const read = (name) => style.getPropertyValue(name).trim();
    Object.assign(this, { paper: read("--paper"), ink: read("--ink"), strong: read("--focus"), plain: read("--plain") });
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
    pen.fillStyle = this.paper;
    pen.fillRect(0, 0, this.width, this.height);
    pen.font = `${FONT}px ${getComputedStyle(document.body).fontFamily}`;
    pen.textBaseline = "middle";
    const scrolled = this.scroller.scrollTop;
    this.rows.forEach((row, depth) => {
      const y = this.top(depth) - scrolled;
      if (y + ROW > 0 && y < this.height) for (const rect of row) this.box(rect, y);
    });
    for (const [node, colour] of [[this.hovered, this.ink], [this.cursor, this.strong]]) {
      const rect = this.rectOf(node);
      if (!rect) continue;
      pen.strokeStyle = colour;
      pen.lineWidth = 2;
      pen.strokeRect(rect.x + 1, this.top(node.depth) - scrolled + 1, Math.max(rect.w - 3, 1), ROW - 3);
    }
  }

  box({ node, x, w }, y) {
    const { pen } = this, [colour, ink] = this.paint(node);
    const found = this.hit && node !== this.graph.root && this.hit[this.graph.stacks.functionOf(node.key, this.graph.lines)];
    const faded = (this.hit && !found) || this.focus.depth > node.depth;
    pen.globalAlpha = faded ? 0.35 : 1;
    pen.fillStyle = colour;
    pen.fillRect(x, y, Math.max(w - (w > 3 ? 1 : 0), NARROWEST), ROW - 1);
    if (found && w > 2) {
      pen.fillStyle = this.ink;
      pen.fillRect(x, y + ROW - 4, Math.max(w - 1, 1), 3);
    }
    pen.globalAlpha = faded ? 0.75 : 1;
    if (w > 26) this.write(this.graph.label(node), x + PAD, y + ROW / 2, w - 2 * PAD, faded ? this.ink : ink);
    pen.globalAlpha = 1;
  }

  write(text, x, y, room, colour) {
    const { pen } = this;
    let shown = text.length * 3 > room ? text.slice(0, Math.ceil(room / 3)) : text; // no letter is narrower than that
    if (shown !== text || pen.measureText(shown).width > room) {
      let low = 0, high = shown.length;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (pen.measureText(`${shown.slice(0, middle)}…`).width <= room) low = middle; else high = middle - 1;
      }
      if (low < 2) return;
      shown = `${shown.slice(0, low)}…`;
    }
    pen.fillStyle = colour;
    pen.fillText(shown, x, y);
  }

  // Fill and text colour of a node.
  paint(node) {
    const { graph } = this, { told } = graph.stacks;
    if (graph.before) return this.change(node);
    if (node === graph.root) return [this.plain, this.ink];
    if (this.colour === "category") {
      const k = graph.category(node), colour = k < 0 ? this.plain : told.colours[told.categories[k]];
      return k < 0 ? [colour, this.ink] : [colour, inkOn(colour)];
    }
    const colour = KIND_COLOURS[graph.stacks.kind(node.key, graph.lines)];
    return [node.key % 2 ? colour : lighter(colour), "#15181c"];
  }

  // Red: a larger share than before. Blue: a smaller one. Pale where the change is small against both.
  change(node) {
    const a = this.graph.shareNow(node), b = this.graph.shareBefore(node);
    if (a + b === 0) return [this.plain, this.ink];
    const size = Math.min(1, Math.abs(a - b) / 0.01) * Math.abs((a - b) / (a + b)) ** 0.6;
    const from = rgbOf(this.plain), to = a > b ? RISE : FALL;
    const colour = hexOf(from.map((c, k) => Math.round(c + (to[k] - c) * size)));
    return [colour, inkOn(colour)];
  }
}

const rgbOf = (colour) => [1, 3, 5].map((k) => parseInt(colour.slice(k, k + 2), 16));
const hexOf = (rgb) => `#${rgb.map((c) => c.toString(16).padStart(2, "0")).join("")}`;
const lighterOf = new Map();
function lighter(colour) {
  if (!lighterOf.has(colour)) lighterOf.set(colour, hexOf(rgbOf(colour).map((c) => Math.round(c + (255 - c) * 0.22))));
  return lighterOf.get(colour);
}
function inkOn(colour) {
  const [r, g, b] = rgbOf(colour).map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#15181c" : "#ffffff";
}
