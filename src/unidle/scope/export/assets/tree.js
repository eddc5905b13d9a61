// The tree of all stacks, what a choice of rows weighs on it, and the merged views that are drawn. No pixels here.

class Stacks {
  constructor(told, columns) {
    this.told = told;
    this.columns = columns;
    const { above, frame } = columns, size = frame.length;
    this.size = size;
    this.frame = frame;
    this.parent = new Uint32Array(size);
    this.firstChild = new Uint32Array(size); // node 0 is the root and nobody's child: 0 means none
    this.nextChild = new Uint32Array(size);
    for (let n = size - 1; n > 0; n--) {
      const parent = this.parent[n] = n - above[n];
      this.nextChild[n] = this.firstChild[parent];
      this.firstChild[parent] = n;
    }
  }

  functionOf(key, lines) { return lines ? this.columns.function[key] : key; }

  name(key, lines) { return this.told.functions[this.functionOf(key, lines)][1]; }

  kind(key, lines) { return this.told.functions[this.functionOf(key, lines)][0]; }

  // File and line, or module, or nothing.
  place(key, lines) {
    const [kind, , file, module] = this.told.functions[this.functionOf(key, lines)];
    if (this.told.kinds[kind] === "kernel") return "kernel";
    const line = lines && file ? this.columns.line[key] : 0;
    return line ? `${file}:${line}` : file || module;
  }

  label(key, lines) {
    const place = this.place(key, lines), short = place.slice(place.lastIndexOf("/") + 1);
    return short ? `${this.name(key, lines)} (${short})` : this.name(key, lines);
  }

  // Which thread rows a choice takes. On another side (or group) a thread is known by its name.
  threadsOf({ side, group, thread }) {
    const name = thread === "" ? null : thread.startsWith("n:") ? thread.slice(2) : undefined;
    const one = name === undefined ? this.told.threads[Number(thread.slice(2))] : null;
    return this.told.threads.map(([of, called, tid, pid, on]) => {
      if (on !== side || (group >= 0 && of !== group)) return 0;
      if (name !== null && name !== undefined) return called === name ? 1 : 0;
      if (!one) return 1;
      const own = one[4] === side && (group < 0 || one[0] === group);
      return (own ? tid === one[2] && pid === one[3] : called === one[1]) ? 1 : 0;
    });
  }

  // Weights of a choice: own and inclusive per node, with numbers of samples (or allocations).
  weigh(choice) {
    const own = new Float64Array(this.size), ownCount = new Float64Array(this.size);
    const categories = this.told.categories.length ? this.told.categories.map(() => null) : null;
    if (choice.show === "live" || choice.show === "allocated") this.addMemory(choice, own, ownCount);
    else this.addTime(choice, own, ownCount, categories);
    const total = own.slice(), count = ownCount.slice();
    for (let n = this.size - 1; n > 0; n--) {
      total[this.parent[n]] += total[n];
      count[this.parent[n]] += count[n];
    }
    return { own, ownCount, total, count, categories, whole: total[0], samples: count[0] };
  }

  addTime(choice, own, ownCount, categories) {
    const c = this.columns, takes = this.threadsOf(choice), state = ["on", "off", "runq"].indexOf(choice.show);
    for (let k = 0; k < c["time.node"].length; k++) {
      if (!takes[c["time.thread"][k]] || (state >= 0 && c["time.state"][k] !== state)) continue;
      const category = c["time.category"][k];
      if (choice.category >= 0 && category !== choice.category) continue;
      const node = c["time.node"][k];
      own[node] += c["time.ns"][k];
      ownCount[node] += c["time.count"][k];
      if (categories) (categories[category] ??= new Map()).set(node, (categories[category].get(node) || 0) + c["time.ns"][k]);
    }
  }

  addMemory({ show, side, group, device }, own, ownCount) {
    const c = this.columns, bytes = c[`held.${show}_bytes`], count = c[show === "live" ? "held.live" : "held.allocations"];
    for (let k = 0; k < bytes.length; k++) {
      if (c["held.side"][k] !== side || (group >= 0 && c["held.group"][k] !== group)) continue;
      if (device >= 0 && c["held.device"][k] !== device) continue;
      own[c["held.node"][k]] += bytes[k];
      ownCount[c["held.node"][k]] += count[k];
    }
  }
}

// A merged view: nodes with the same key under the same parent are one. Children are made when they are first asked for.
class Graph {
  constructor(stacks, now, before, { inverted, lines }) {
    Object.assign(this, { stacks, now, before, inverted, lines });
    this.keys = lines ? null : stacks.columns.function;
    this.root = { key: -1, depth: 0, parent: null, kids: null, raw: [0], from: null };
    this.fill(this.root, now.whole, before ? before.whole : 0, now.own[0], now.samples, before ? before.samples : 0);
  }

  keyOf(raw) {
    const frame = this.stacks.frame[raw];
    return this.keys ? this.keys[frame] : frame;
  }

  fill(node, a, b, self, samples, samplesBefore) {
    Object.assign(node, { a, b, self, samples, samplesBefore });
    node.width = this.before ? (this.shareNow(node) + this.shareBefore(node)) / 2 : a;
  }

  shareNow(node) { return this.now.whole > 0 ? node.a / this.now.whole : 0; }
  shareBefore(node) { return this.before && this.before.whole > 0 ? node.b / this.before.whole : 0; }
  points(node) { return 100 * (this.shareNow(node) - this.shareBefore(node)); }
  name(node) { return node === this.root ? "all" : this.stacks.name(node.key, this.lines); }
  label(node) { return node === this.root ? "all" : this.stacks.label(node.key, this.lines); }

  children(node) {
    if (!node.kids) {
      const found = this.inverted ? this.callers(node) : this.callees(node);
      node.kids = found.filter((kid) => kid.width > 0).sort((p, q) => q.width - p.width || p.key - q.key);
    }
    return node.kids;
  }

  group(node, add) {
    const found = new Map();
    add((raw, from) => {
      const key = this.keyOf(raw);
      let kid = found.get(key);
      if (!kid) found.set(key, kid = { key, depth: node.depth + 1, parent: node, kids: null, raw: [], from: from === null ? null : [] });
      kid.raw.push(raw);
      if (from !== null) kid.from.push(from);
    });
    return [...found.values()];
  }

  callees(node) {
    const { firstChild, nextChild } = this.stacks, { now, before } = this;
    const kids = this.group(node, (put) => {
      for (const raw of node.raw) {
        for (let c = firstChild[raw]; c; c = nextChild[c]) {
          if (now.total[c] > 0 || (before && before.total[c] > 0)) put(c, null);
        }
      }
    });
    for (const kid of kids) this.fill(kid, ...this.sums(kid.raw, "total", "count", kid.raw));
    return kids;
  }

  // Inverted: `raw` is where each stack has been followed to, `from` is the leaf that it comes from.
  callers(node) {
    const { now, before } = this, { parent, size } = this.stacks;
    const kids = this.group(node, (put) => {
      if (node === this.root) {
        for (let n = 1; n < size; n++) if (now.own[n] > 0 || (before && before.own[n] > 0)) put(n, n);
      } else {
        for (let k = 0; k < node.raw.length; k++) {
          const up = parent[node.raw[k]];
          if (up) put(up, node.from[k]);
        }
      }
    });
    for (const kid of kids) this.fill(kid, ...this.sums(kid.from, "own", "ownCount", node === this.root ? kid.from : []));
    return kids;
  }

  sums(rows, weight, count, selves) {
    const { now, before } = this;
    let a = 0, b = 0, self = 0, samples = 0, samplesBefore = 0;
    for (const n of rows) { a += now[weight][n]; samples += now[count][n]; }
    if (before) for (const n of rows) { b += before[weight][n]; samplesBefore += before[count][n]; }
    for (const n of selves) self += now.own[n];
    return [a, b, self, samples, samplesBefore];
  }

  // The lines of a function's node, the heaviest first: [line, weight].
  linesOf(node) {
    if (this.lines || node === this.root) return [];
    const found = new Map(), { line } = this.stacks.columns;
    node.raw.forEach((raw, k) => {
      const at = line[this.stacks.frame[raw]];
      const weight = this.inverted ? this.now.own[node.from[k]] : this.now.total[raw];
      if (at) found.set(at, (found.get(at) || 0) + weight);
    });
    return [...found].sort((p, q) => q[1] - p[1] || p[0] - q[0]);
  }

  // The category with the most of a node, or -1.
  category(node) {
    if (node.category !== undefined) return node.category;
    let best = -1, most = 0;
    this.categoryTotals().forEach((totals, k) => {
      if (!totals) return;
      let sum = 0;
      if (this.inverted && node !== this.root) for (const n of node.from) sum += totals.own.get(n) || 0;
      else for (const n of node.raw) sum += totals.total[n];
      if (sum > most) { most = sum; best = k; }
    });
    return node.category = best;
  }

  categoryTotals() {
    const { parent, size } = this.stacks;
    return this.byCategory ??= (this.now.categories || []).map((own) => {
      if (!own) return null;
      const total = new Float64Array(size);
      for (const [n, ns] of own) total[n] = ns;
      for (let n = size - 1; n > 0; n--) total[parent[n]] += total[n];
      return { own, total };
    });
  }

  // What a search finds: flags per function, and the share of the whole under any of them (each stack once).
  search(pattern) {
    const { told, parent, size, frame, columns } = this.stacks;
    const hit = told.functions.map((_, k) => (pattern.test(this.stacks.label(k, false)) ? 1 : 0));
    const share = (weights) => {
      const covered = new Uint8Array(size);
      let sum = 0;
      for (let n = 1; n < size; n++) {
        covered[n] = covered[parent[n]] | hit[columns.function[frame[n]]];
        if (covered[n]) sum += weights.own[n];
      }
      return weights.whole > 0 ? sum / weights.whole : 0;
    };
    return { hit, functions: hit.reduce((sum, one) => sum + one, 0), now: share(this.now), before: this.before ? share(this.before) : 0 };
  }

  // Own and total of every function or line; of a recursion only the outermost counts.
  table(lines) {
    const { parent, size, frame, columns, told } = this.stacks;
    const length = lines ? columns.function.length : told.functions.length;
    const rows = Array.from({ length }, (_, key) => ({ key, self: 0, total: 0, count: 0, before: 0, beforeCount: 0 }));
    const active = new Uint32Array(length), path = new Uint32Array(size);
    let depth = 0;
    for (let n = 1; n < size; n++) {
      while (depth && path[depth - 1] !== parent[n]) active[this.tableKey(path[--depth], lines)]--;
      path[depth++] = n;
      const key = lines ? frame[n] : columns.function[frame[n]], row = rows[key];
      row.self += this.now.own[n];
      if (active[key]++) continue;
      row.total += this.now.total[n];
      row.count += this.now.count[n];
      if (this.before) { row.before += this.before.total[n]; row.beforeCount += this.before.count[n]; }
    }
    return rows.filter((row) => row.total > 0 || row.before > 0);
  }

  tableKey(n, lines) {
    const frame = this.stacks.frame[n];
    return lines ? frame : this.stacks.columns.function[frame];
  }

  // How sure a change is, from numbers of samples (two proportions, pooled): as difference.py reads it.
  hint(count, countBefore) {
    const of = this.now.samples, ofBefore = this.before.samples;
    if (!(of > 0 && ofBefore > 0) || count + countBefore < 5) return "unclear";
    const pooled = (count + countBefore) / (of + ofBefore);
    const error = Math.sqrt(Math.max(0, pooled * (1 - pooled)) * (1 / of + 1 / ofBefore));
    const z = error > 0 ? Math.abs(count / of - countBefore / ofBefore) / error : 0;
    return z >= 4 ? "clear" : z >= 2.5 ? "likely" : "unclear";
  }
}
