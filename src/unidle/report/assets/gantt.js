// Draws the visible rows of the chart. Knows pixels and bars; what is chosen comes from page.js.

const AXIS = 46, FONT = 14, MIN_LABEL = 44, NAME_HEIGHT = 18;
const MARK_SIGNS = { failure: "\u00d7", kill: "\u25a0", restart: "\u25b6", checkpoint: "\u25c6" };

class Gantt {
  constructor(canvas, report) {
    this.canvas = canvas;
    this.report = report;
    this.context = canvas.getContext("2d");
    this.view = { from: 0, to: report.length };
    this.rows = report.tracks.map((_, k) => k);
    this.cursor = null; // { row, bar }
    this.top = 0;
    this.rowHeight = 22;
    this.compact = false;
    this.stacked = false; // a row's name stands above its bars: the screen is narrow
    this.folded = new Map(); // track -> how many idle ones its row stands for
    this.leafOf = Uint16Array.from(report.contexts, ([leaf]) => leaf);
    this.time = new Float64Array(report.leaves.length); // per leaf, of the pixel being summed
    this.named = new Uint32Array(report.leaves.length);
    this.choose(null);
    this.gangRows = report.gangs.map((gang) => new Set(gang));
    this.measureLabels();
  }

  measureLabels() {
    this.context.font = `${FONT}px ${getComputedStyle(document.body).fontFamily}`;
    let widest = 0;
    const step = Math.max(1, Math.floor(this.report.tracks.length / 200));
    for (let k = 0; k < this.report.tracks.length; k += step) {
      widest = Math.max(widest, this.context.measureText(this.report.tracks[k][1].slice(0, 60)).width);
    }
    const fold = this.context.measureText(`\u25b8 ${grouped(this.report.tracks.length)} idle devices`).width;
    this.labelWidth = Math.min(Math.ceil(Math.max(widest, fold)) + 14, 190);
  }

  gutter() { return this.compact || this.stacked ? 0 : Math.min(this.labelWidth, Math.floor(this.width * 0.3)); }
  toX(t) { return this.gutter() + (t - this.view.from) / (this.view.to - this.view.from) * (this.width - this.gutter()); }
  toTime(x) { return this.view.from + (x - this.gutter()) / (this.width - this.gutter()) * (this.view.to - this.view.from); }
  contentHeight() { return AXIS + this.rows.length * this.rowHeight; }
  rowAt(y) { return y < AXIS ? -1 : Math.floor((y - AXIS + this.top) / this.rowHeight); }

  // Index of the track's first bar that ends after t.
  firstAfter(track, t) {
    const { offsets, end } = this.report.bars;
    let low = offsets[track], high = offsets[track + 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (end[middle] > t) high = middle; else low = middle + 1;
    }
    return low;
  }

  barAt(row, t) {
    const { offsets, start } = this.report.bars;
    const track = this.rows[row];
    if (track === undefined) return -1;
    const k = this.firstAfter(track, t);
    return k < offsets[track + 1] && start[k] <= t ? k : -1;
  }

  readColours() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    const paper = read("--paper");
    if (paper === this.paper) return;
    this.paper = paper;
    this.ink = read("--ink");
    this.quiet = read("--quiet");
    this.rule = read("--rule");
    this.focus = read("--focus");
    this.hatch = this.hatchPattern(paper);
  }

  hatchPattern(paper) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const pen = tile.getContext("2d");
    pen.strokeStyle = paper;
    pen.lineWidth = 2;
    pen.beginPath();
    for (const shift of [-6, 0, 6]) { pen.moveTo(shift - 1, 7); pen.lineTo(shift + 7, -1); }
    pen.stroke();
    return this.context.createPattern(tile, "repeat");
  }

  resize(width, height, sharpness = 1) {
    const ratio = Math.max(window.devicePixelRatio || 1, sharpness);
    this.width = width;
    this.height = height;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.height = `${height}px`;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  draw() {
    const pen = this.context;
    this.readColours();
    pen.fillStyle = this.paper;
    pen.fillRect(0, 0, this.width, this.height);
    pen.font = `${FONT}px ${getComputedStyle(document.body).fontFamily}`;
    pen.textBaseline = "middle";
    const first = Math.max(0, Math.floor(this.top / this.rowHeight));
    const last = Math.min(this.rows.length, Math.ceil((this.top + this.height - AXIS) / this.rowHeight));
    this.rowOf = new Map();
    pen.save();
    pen.beginPath();
    pen.rect(0, AXIS, this.width, this.height - AXIS);
    pen.clip();
    for (let row = first; row < last; row++) {
      this.rowOf.set(this.rows[row], row);
      this.drawRow(row, AXIS + row * this.rowHeight - this.top);
    }
    this.drawMarkLines();
    this.drawCursor();
    pen.restore();
    this.drawAxis();
  }

  drawRow(row, y) {
    const pen = this.context, track = this.rows[row], gap = this.rowHeight > 8 ? 2 : 0;
    if (!this.compact) {
      pen.fillStyle = this.ink;
      pen.textAlign = "left";
      const room = this.stacked ? this.width : this.gutter() - 10;
      pen.fillText(this.fitted(this.nameOf(track), room), 0, y + (this.stacked ? NAME_HEIGHT : this.rowHeight) / 2);
    }
    const { offsets, start, end, context } = this.report.bars;
    const scale = (this.width - this.gutter()) / (this.view.to - this.view.from);
    const stop = offsets[track + 1];
    const above = this.stacked ? NAME_HEIGHT : 0;
    const lane = { y: y + above + gap / 2, height: this.rowHeight - above - gap };
    const { from, to } = this.view, left = this.gutter(), { leafOf, weight, time, named } = this;
    let pixel = -1, run = null;
    for (let k = this.firstAfter(track, from); k < stop && start[k] < to; k++) {
      const x0 = left + (Math.max(start[k], from) - from) * scale;
      const x1 = left + (Math.min(end[k], to) - from) * scale;
      const column = x0 | 0, cause = context[k];
      if (pixel >= 0 && (pixel !== column || column !== (x1 | 0))) {
        run = this.extend(run, pixel, pixel + 1, this.longest(), lane);
        pixel = -1;
      }
      if (column === (x1 | 0)) { // narrower than a pixel: the pixel goes to the longest cause
        const leaf = leafOf[cause];
        pixel = column;
        time[leaf] += (x1 - x0) * weight[cause];
        named[leaf] = cause;
      } else {
        run = this.extend(run, x0, x1, cause, lane);
      }
    }
    if (pixel >= 0) run = this.extend(run, pixel, pixel + 1, this.longest(), lane);
    if (run) this.fill(run, lane);
  }

  nameOf(track) {
    const count = this.folded.get(track);
    return count ? `\u25b8 ${grouped(count)} idle devices` : this.report.tracks[track][1];
  }

  // The context of the leaf that has most of the current pixel; clears the sums.
  longest() {
    const { time, named } = this;
    let best = 0;
    for (let leaf = 1; leaf < time.length; leaf++) if (time[leaf] > time[best]) best = leaf;
    time.fill(0);
    return named[best];
  }

  // `matches`: per context 1 where it is chosen, null where all are. What is chosen wins a pixel,
  // so that a filter never hides it.
  choose(matches) {
    this.matches = matches;
    this.weight = Float64Array.from(this.report.contexts, (_, k) => matches && matches[k] ? 1e6 : 1);
  }

  // Neighbours that look the same are one rectangle with one label.
  extend(run, x0, x1, context, lane) {
    const look = this.lookOf(context);
    if (run && run.look === look && x0 - run.x1 < 0.5) {
      run.x1 = Math.max(run.x1, x1);
      return run;
    }
    if (run) this.fill(run, lane);
    return { x0: run ? Math.max(x0, Math.min(run.x1, x0 + 1)) : x0, x1, look, context };
  }

  lookOf(context) {
    const [leaf, , , how] = this.report.contexts[context];
    const chosen = !this.matches || this.matches[context];
    return leaf * 4 + (how === "modelled" ? 2 : 0) + (chosen ? 1 : 0);
  }

  fill(run, lane) {
    const pen = this.context, [leafIndex, , , how] = this.report.contexts[run.context];
    const [leaf, group, colour, ink] = this.report.leaves[leafIndex];
    const chosen = !this.matches || this.matches[run.context];
    const width = Math.max(run.x1 - run.x0, 1);
    const hatched = how === "modelled" || group === "unseen";
    pen.globalAlpha = chosen ? 1 : 0.16;
    pen.fillStyle = colour;
    pen.fillRect(run.x0, lane.y, width, lane.height);
    if (hatched) {
      pen.fillStyle = this.hatch;
      pen.fillRect(run.x0, lane.y, width, lane.height);
    }
    pen.globalAlpha = 1;
    if (width > 2.5) { // the edge between two shades of one group
      pen.fillStyle = this.paper;
      pen.fillRect(run.x1 - 0.75, lane.y, 0.75, lane.height);
    }
    if (chosen && !hatched && lane.height > 12 && width > MIN_LABEL) this.label(run, lane, leaf, ink);
  }

  label(run, lane, leaf, ink) {
    const pen = this.context, room = run.x1 - run.x0 - 10;
    if (pen.measureText(leaf).width > room) return;
    pen.fillStyle = ink;
    pen.textAlign = "left";
    pen.fillText(leaf, run.x0 + 5, lane.y + lane.height / 2 + 1);
  }

  visibleMarks() {
    const { from, to } = this.view;
    return this.report.marks.filter((mark) => mark[0] >= from && mark[0] <= to && (!this.showsMark || this.showsMark(mark)));
  }

  drawMarkLines() {
    const pen = this.context, marks = this.visibleMarks();
    if (marks.length > 2000) return; // a wall of lines says nothing; the axis still counts them
    for (const [at, kind, gang, own] of marks) {
      const x = Math.round(this.toX(at)) + 0.5;
      pen.strokeStyle = this.ink;
      pen.lineWidth = kind === "checkpoint" ? 1 : 1.5;
      pen.setLineDash(kind === "checkpoint" ? [2, 3] : kind === "restart" ? [6, 3] : []);
      pen.beginPath();
      for (const [track, row] of this.rowOf) {
        if (gang >= 0 && !this.gangRows[gang].has(track)) continue;
        const y = AXIS + row * this.rowHeight - this.top;
        pen.moveTo(x, y);
        pen.lineTo(x, y + this.rowHeight);
      }
      pen.stroke();
      pen.setLineDash([]);
      if (this.rowOf.has(own) && this.rowHeight > 8 && kind === "failure") this.sign(kind, x, own);
    }
  }

  sign(kind, x, track) {
    x = this.inside(x);
    const pen = this.context, y = AXIS + this.rowOf.get(track) * this.rowHeight - this.top + (this.rowHeight + (this.stacked ? NAME_HEIGHT : 0)) / 2;
    pen.fillStyle = this.ink;
    pen.beginPath();
    pen.arc(x, y, 8, 0, 7);
    pen.fill();
    pen.fillStyle = this.paper;
    pen.textAlign = "center";
    pen.fillText(MARK_SIGNS[kind], x, y + 1);
  }

  // Where a sign is still whole.
  inside(x) { return Math.min(Math.max(x, this.gutter() + 8), this.width - 8); }

  drawCursor() {
    if (!this.cursor || this.cursor.bar < 0) return;
    const row = this.cursor.row, { start, end } = this.report.bars, pen = this.context;
    const x0 = Math.max(this.toX(start[this.cursor.bar]), this.gutter()), x1 = Math.min(this.toX(end[this.cursor.bar]), this.width);
    if (x1 < x0) return;
    pen.strokeStyle = this.ink;
    pen.lineWidth = 2;
    pen.strokeRect(x0 + 1, AXIS + row * this.rowHeight - this.top + 1, Math.max(x1 - x0 - 2, 1), this.rowHeight - 2);
  }

  drawAxis() {
    const pen = this.context, { from, to } = this.view, unit = this.report.unit;
    pen.fillStyle = this.paper;
    pen.fillRect(0, 0, this.width, AXIS);
    pen.strokeStyle = this.rule;
    pen.lineWidth = 1;
    const step = tickStep((to - from) * unit, (this.width - this.gutter()) / 90) / unit;
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
      const x = Math.round(this.toX(t)) + 0.5;
      pen.beginPath();
      pen.moveTo(x, 18);
      pen.lineTo(x, 24);
      pen.stroke();
      pen.fillStyle = this.quiet;
      pen.textAlign = x < this.gutter() + 20 ? "left" : x > this.width - 30 ? "right" : "center";
      pen.fillText(tickText(t * unit, step * unit), x, 9);
    }
    this.drawMarkSigns();
    pen.beginPath();
    pen.moveTo(this.gutter(), AXIS - 0.5);
    pen.lineTo(this.width, AXIS - 0.5);
    pen.stroke();
    if (this.brush) {
      pen.fillStyle = this.focus;
      pen.globalAlpha = 0.3;
      pen.fillRect(Math.min(...this.brush), 0, Math.abs(this.brush[1] - this.brush[0]), this.height);
      pen.globalAlpha = 1;
    }
  }

  drawMarkSigns() {
    const pen = this.context;
    pen.fillStyle = this.ink;
    this.signs = [];
    for (const mark of this.visibleMarks()) {
      const x = this.inside(this.toX(mark[0])), last = this.signs[this.signs.length - 1];
      if (last && x < last.x + 12) last.marks.push(mark);
      else this.signs.push({ x, marks: [mark] });
    }
    this.signs.forEach(({ x, marks }, k) => {
      const worst = Object.keys(MARK_SIGNS).find((kind) => marks.some((mark) => mark[1] === kind));
      pen.textAlign = "center";
      pen.fillText(MARK_SIGNS[worst], x, 34);
      this.nameSign(worst, x, k);
    });
  }

  // The sign's word stands right of it, else left of it, where no other sign is in the way.
  nameSign(kind, x, k) {
    const pen = this.context, room = pen.measureText(kind).width + 24;
    const next = k + 1 < this.signs.length ? this.signs[k + 1].x : this.width;
    const before = k > 0 ? this.signs[k - 1].x : this.gutter();
    const named = k > 0 && this.signs[k - 1].named === "right" ? this.signs[k - 1].to : before;
    if (next - x > room) {
      pen.textAlign = "left";
      pen.fillText(kind, x + 9, 34);
      Object.assign(this.signs[k], { named: "right", to: x + room });
    } else if (x - named > room) {
      pen.textAlign = "right";
      pen.fillText(kind, x - 9, 34);
    }
  }

  marksAt(x, y) {
    if (y >= AXIS || y < 24) return [];
    const near = (this.signs || []).find((sign) => Math.abs(sign.x - x) < 9);
    return near ? near.marks : [];
  }

  fitted(text, room) {
    const pen = this.context;
    if (pen.measureText(text).width <= room) return text;
    let low = 0, high = text.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (pen.measureText(text.slice(0, middle) + "\u2026").width <= room) low = middle; else high = middle - 1;
    }
    return text.slice(0, low) + "\u2026";
  }
}

const TICKS = [1, 2, 5, 10, 20, 50, 100, 200, 500].flatMap((n) => [n, n * 1e3, n * 1e6])
  .concat([1, 2, 5, 10, 15, 30].map((n) => n * 1e9), [1, 2, 5, 10, 15, 30].map((n) => n * 6e10))
  .concat([1, 2, 3, 6, 12].map((n) => n * 3.6e12), [1, 2, 5, 10, 20, 50, 100, 365].map((n) => n * 8.64e13))
  .sort((a, b) => a - b);

function tickStep(spanNs, ticks) {
  return TICKS.find((step) => spanNs / step <= ticks) || TICKS[TICKS.length - 1];
}

function tickText(ns, stepNs) {
  if (ns === 0) return "0";
  if (stepNs >= 8.64e13) return `${Math.round(ns / 8.64e13)} d`;
  if (stepNs >= 3.6e12) return `${grouped(Math.round(ns / 3.6e12))} h`;
  if (stepNs >= 6e10) return `${grouped(Math.round(ns / 6e10))} min`;
  const digits = stepNs >= 1e9 ? 0 : Math.min(9, Math.ceil(-Math.log10(stepNs / 1e9)));
  return ns >= 6e10 && digits === 0
    ? `${Math.floor(ns / 6e10)}:${String(Math.round(ns / 1e9) % 60).padStart(2, "0")} min`
    : `${(ns / 1e9).toFixed(digits)} s`;
}
