// Pointer, wheel and keys on the chart. The page hears of it through `chosen` and `moved`.

const PRINT_WIDTH = 1000, PRINT_HEIGHT = 1400, STACKED_BELOW = 560;

class Chart {
  constructor(element, gantt, { describe, describeMarks, pinned, chosen, moved, unfold }) {
    Object.assign(this, { element, gantt, describe, describeMarks, pinned, chosen, moved, unfold });
    this.rest = element.querySelector(".rest");
    this.tip = byId("tip");
    this.minimum = Math.max(100 / gantt.report.unit, 1);
    element.addEventListener("scroll", () => this.draw());
    element.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    element.addEventListener("keydown", (event) => this.key(event));
    element.addEventListener("pointerdown", (event) => this.press(event));
    element.addEventListener("pointermove", (event) => this.move(event));
    element.addEventListener("pointerup", (event) => this.release(event));
    element.addEventListener("pointercancel", () => { this.drag = null; });
    element.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    element.addEventListener("dblclick", (event) => this.zoomToBar(event));
    new ResizeObserver(() => this.layout()).observe(element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    addEventListener("beforeprint", () => this.print(true));
    addEventListener("afterprint", () => this.print(false));
  }

  layout() {
    const gantt = this.gantt, printing = "print" in document.documentElement.dataset;
    const width = printing ? PRINT_WIDTH : this.element.clientWidth;
    gantt.stacked = !gantt.compact && width < STACKED_BELOW;
    gantt.rowHeight = gantt.compact ? 5 : gantt.stacked ? 22 + NAME_HEIGHT : 22;
    const all = gantt.contentHeight();
    const room = Math.max(Math.min(innerHeight * 0.7, 900), 160);
    const height = Math.min(all, printing ? PRINT_HEIGHT : room);
    gantt.resize(width, height, printing ? 2 : 1);
    this.rest.style.height = `${printing ? 0 : all - height}px`;
    this.draw();
  }

  print(on) {
    if (on) document.documentElement.dataset.print = "1";
    else delete document.documentElement.dataset.print;
    this.layout();
  }

  draw() {
    this.gantt.top = this.element.scrollTop;
    this.gantt.draw();
  }

  show(from, to) {
    const gantt = this.gantt, length = gantt.report.length;
    const span = Math.min(Math.max(to - from, this.minimum), length);
    const start = Math.min(Math.max(from, 0), length - span);
    gantt.view = { from: start, to: start + span };
    this.draw();
    this.moved();
  }

  zoom(factor, around) {
    const { from, to } = this.gantt.view;
    const fixed = around === undefined ? (from + to) / 2 : around;
    this.show(fixed - (fixed - from) * factor, fixed + (to - fixed) * factor);
  }

  pan(share) {
    const { from, to } = this.gantt.view, span = to - from;
    const start = Math.min(Math.max(from + span * share, 0), this.gantt.report.length - span);
    this.show(start, start + span);
  }

  all() { this.show(0, this.gantt.report.length); }

  place(event) {
    const box = this.gantt.canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  wheel(event) {
    const { x } = this.place(event);
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 120), this.gantt.toTime(x));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      this.pan((event.deltaX || event.deltaY) / 800);
    }
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = event.shiftKey ? "bar" : "pan";
    const does = {
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.all(),
      ArrowLeft: () => step === "bar" ? this.nextBar(-1) : this.pan(-0.1),
      ArrowRight: () => step === "bar" ? this.nextBar(1) : this.pan(0.1),
      ArrowUp: () => this.nextRow(-1), ArrowDown: () => this.nextRow(1),
      PageUp: () => this.nextRow(-20), PageDown: () => this.nextRow(20),
      Enter: () => this.gantt.cursor && (this.unfold(this.gantt.rows[this.gantt.cursor.row]) || this.chosen(this.gantt.cursor.bar)),
      Escape: () => this.pin(null),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
  }

  nextRow(by) {
    const gantt = this.gantt, last = gantt.rows.length - 1;
    if (last < 0) return;
    const row = gantt.cursor ? Math.min(Math.max(gantt.cursor.row + by, 0), last) : 0;
    const { start, end } = gantt.report.bars, { from, to } = gantt.view, bar = gantt.cursor ? gantt.cursor.bar : -1;
    const middle = bar < 0 ? (from + to) / 2 : (Math.max(start[bar], from) + Math.min(end[bar], to)) / 2;
    this.pin({ row, bar: gantt.barAt(row, middle) });
  }

  nextBar(by) {
    const gantt = this.gantt, { offsets, start, end } = gantt.report.bars;
    if (!gantt.cursor || gantt.cursor.bar < 0) { this.nextRow(0); return; }
    const track = gantt.rows[gantt.cursor.row], bar = gantt.cursor.bar + by;
    if (bar < offsets[track] || bar >= offsets[track + 1]) return;
    const { from, to } = gantt.view, span = to - from;
    if (end[bar] <= from || start[bar] >= to) this.show((start[bar] + end[bar] - span) / 2, (start[bar] + end[bar] + span) / 2);
    this.pin({ row: gantt.cursor.row, bar });
  }

  pin(cursor) {
    this.gantt.cursor = cursor;
    if (cursor) {
      const y = cursor.row * this.gantt.rowHeight, room = this.gantt.height - AXIS - this.gantt.rowHeight;
      if (y < this.element.scrollTop) this.element.scrollTop = y;
      if (y > this.element.scrollTop + room) this.element.scrollTop = y - room;
    }
    this.draw();
    this.pinned(cursor ? cursor.bar : -1, cursor ? this.gantt.rows[cursor.row] : -1);
  }

  press(event) {
    if (event.button !== 0 || event.offsetX > this.element.clientWidth) return;
    const { x, y } = this.place(event);
    this.drag = { x, y, view: { ...this.gantt.view }, axis: y < AXIS, moved: false };
  }

  move(event) {
    const { x, y } = this.place(event), gantt = this.gantt;
    if (!this.drag || !(event.buttons & 1)) { this.drag = null; this.hover(event, x, y); return; }
    if (!this.drag.moved && Math.abs(x - this.drag.x) < 4) return;
    if (!this.drag.moved) this.element.setPointerCapture(event.pointerId);
    this.drag.moved = true;
    this.tip.hidden = true;
    if (this.drag.axis) {
      gantt.brush = [this.drag.x, x];
      this.draw();
    } else {
      const { from, to } = this.drag.view;
      const by = Math.min(Math.max((this.drag.x - x) / (gantt.width - gantt.gutter()) * (to - from), -from), gantt.report.length - to);
      this.show(from + by, to + by);
    }
  }

  release(event) {
    const drag = this.drag, { x, y } = this.place(event), gantt = this.gantt;
    this.drag = null;
    gantt.brush = null;
    if (!drag) return;
    if (drag.moved && drag.axis) {
      this.show(...[gantt.toTime(drag.x), gantt.toTime(x)].sort((a, b) => a - b));
    } else if (!drag.moved && y >= AXIS) {
      const row = gantt.rowAt(y);
      if (row < gantt.rows.length && !this.unfold(gantt.rows[row])) this.pin({ row, bar: x < gantt.gutter() ? -1 : gantt.barAt(row, gantt.toTime(x)) });
    }
  }

  hover(event, x, y) {
    const gantt = this.gantt, marks = gantt.marksAt(x, y), row = gantt.rowAt(y);
    const bar = row >= 0 && x >= gantt.gutter() ? gantt.barAt(row, gantt.toTime(x)) : -1;
    const content = marks.length ? this.describeMarks(marks) : bar >= 0 ? this.describe(bar, gantt.rows[row]) : null;
    this.tip.hidden = !content;
    if (!content) return;
    this.tip.replaceChildren(content);
    const box = this.tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - box.width - 8);
    const below = event.clientY + 18 + box.height < innerHeight;
    this.tip.style.left = `${Math.max(left, 8)}px`;
    this.tip.style.top = `${below ? event.clientY + 18 : Math.max(event.clientY - box.height - 12, 8)}px`;
  }

  zoomToBar(event) {
    const gantt = this.gantt, { x, y } = this.place(event);
    const bar = gantt.barAt(gantt.rowAt(y), gantt.toTime(x));
    if (bar < 0) return;
    const { start, end } = gantt.report.bars, margin = (end[bar] - start[bar]) * 0.1;
    this.show(start[bar] - margin, end[bar] + margin);
  }
}
