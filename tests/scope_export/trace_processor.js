// Runs Perfetto's trace processor (its WebAssembly build, as the viewer's worker runs it) in Node.
// Arguments: folder of the build, file with the requests, file for the replies.
"use strict";
const fs = require("node:fs"), path = require("node:path"), vm = require("node:vm");
const [, , folder, requests, replies] = process.argv;
const out = [];

// What a worker offers, as far as the build asks for it: its address and a way to read the module beside it.
class Request {
  open(_, name) { this.name = name; }
  send() { const bytes = fs.readFileSync(path.join(folder, path.basename(this.name))); this.status = 200; this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length); }
}
let ready = () => {};
// The module as it is, but that we hear when the worker has told it where to send its replies.
class Instance {
  constructor(module, imports) {
    const { exports } = new WebAssembly.Instance(module, imports);
    const init = (...given) => { setTimeout(() => ready(), 0); return exports.trace_processor_rpc_init(...given); };
    this.exports = { ...exports, trace_processor_rpc_init: init };
  }
}
const scope = {
  WebAssembly: { Module: WebAssembly.Module, Memory: WebAssembly.Memory, Table: WebAssembly.Table, RuntimeError: WebAssembly.RuntimeError, Instance },
  XMLHttpRequest: Request, WorkerGlobalScope: class {}, importScripts() {}, location: { href: "file:///engine_bundle.js" },
  console: { log() {}, warn() {}, error() {} },
  TextDecoder, TextEncoder, URL, performance, crypto, setTimeout, clearTimeout, queueMicrotask, Uint8Array, TypeError,
};
scope.self = scope;
vm.createContext(scope);
const port = { onmessage: null, postMessage: (bytes) => out.push(Buffer.from(bytes)) };
ready = () => {
  port.onmessage({ data: new Uint8Array(fs.readFileSync(requests)) });
  fs.writeFileSync(replies, Buffer.concat(out));
};
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), scope);
scope.onmessage({ data: port });
