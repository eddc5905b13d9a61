// What the file carries: deflated JSON, and the bars as six columns of LEB128 numbers (report/bars.py).

function readColumn(bytes, from, column) {
  let at = from;
  for (let k = 0; k < column.length; k++) {
    let value = 0, scale = 1, octet;
    do {
      octet = bytes[at++];
      value += (octet & 127) * scale;
      scale *= 128;
    } while (octet > 127);
    column[k] = value;
  }
  return at;
}

function decodeBars(bytes, counts) {
  const offsets = new Uint32Array(counts.length + 1);
  counts.forEach((count, k) => { offsets[k + 1] = offsets[k] + count; });
  const total = offsets[counts.length];
  const bars = {
    offsets, total,
    start: new Float64Array(total), end: new Float64Array(total),
    context: new Uint32Array(total), step: new Int32Array(total), further: new Uint32Array(total),
    impure: new Uint16Array(total),
  };
  if (total === 0) return bars;
  let at = 0;
  for (const name of ["start", "end", "context", "step", "further", "impure"]) at = readColumn(bytes, at, bars[name]);
  for (let track = 0; track < counts.length; track++) {
    let before = 0;
    for (let k = offsets[track]; k < offsets[track + 1]; k++) {
      bars.start[k] += before;
      before = bars.end[k] += bars.start[k];
      bars.step[k] -= 1;
    }
  }
  return bars;
}

async function readReport() {
  const report = JSON.parse(new TextDecoder().decode(await inflated("data")));
  report.bars = decodeBars(new Uint8Array(await inflated("bars")), report.counts);
  report.startNs = BigInt(report.start);
  return report;
}

const grouped = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, ",");

// The same words as text.duration in Python; a test holds them together.
function duration(ns) {
  if (ns === 0) return "0 s";
  if (ns < 1e3) return `${Math.round(ns)} ns`;
  for (const [unit, name, wholeFrom] of [[1e3, "us", 100], [1e6, "ms", 100], [1e9, "s", 600]]) {
    const tenths = Math.floor((10 * ns + unit / 2) / unit), whole = Math.floor((ns + unit / 2) / unit);
    if (tenths < wholeFrom) return `${Math.floor(tenths / 10)}.${tenths % 10} ${name}`;
    if (name !== "s" && whole < 1000) return `${whole} ${name}`;
  }
  const two = (bigNs, big, smallNs, small) => {
    const smalls = Math.floor((ns + smallNs / 2) / smallNs), perBig = bigNs / smallNs;
    return `${grouped(Math.floor(smalls / perBig))} ${big} ${String(smalls % perBig).padStart(2, "0")} ${small}`;
  };
  if (Math.floor((ns + 5e8) / 1e9) < 3600) return two(6e10, "min", 1e9, "s");
  if (Math.floor((ns + 3e10) / 6e10) < 1440) return two(3.6e12, "h", 6e10, "min");
  return two(8.64e13, "d", 3.6e12, "h");
}

function clockTime(report, units) {
  const ns = report.startNs + BigInt(Math.round(units * report.unit));
  const stamp = new Date(Number(ns / 1000000n)).toISOString();
  return `${stamp.slice(0, 10)} ${stamp.slice(11, 19)}.${String(ns % 1000000000n).padStart(9, "0")} UTC`;
}

function shellQuote(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}
