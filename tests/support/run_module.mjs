// Run a batch of calls (see foreign.py) on a WebAssembly module: run_module.mjs MODULE KERNELS
import { readFileSync, writeSync } from "node:fs";

const kernels = Object.entries(JSON.parse(process.argv[3]));
const batch = readFileSync(0);
const module = await WebAssembly.compile(readFileSync(process.argv[2]));
if (WebAssembly.Module.imports(module).length) throw new Error("the module imports something");
const { exports } = await WebAssembly.instantiate(module);

const start = (exports.__heap_base.value + 63) & ~63;
exports.memory.grow(Math.ceil(batch.length / 65536) + 1);
const room = new Uint8Array(exports.memory.buffer, start, batch.length);
room.set(batch);
const view = new DataView(exports.memory.buffer, start, batch.length);

const get = {
  f4: (at) => view.getFloat32(at, true),
  f8: (at) => view.getFloat64(at, true),
  i8: (at) => view.getBigInt64(at, true),
  u8: (at) => view.getBigUint64(at, true),
  i4: (at) => view.getInt32(at, true),
  u4: (at) => view.getUint32(at, true),
};
const set = {
  f4: (at, value) => view.setFloat32(at, value, true),
  f8: (at, value) => view.setFloat64(at, value, true),
  i8: (at, value) => view.setBigInt64(at, value, true),
  u8: (at, value) => view.setBigInt64(at, value, true),
  i4: (at, value) => view.setInt32(at, value, true),
  u4: (at, value) => view.setInt32(at, value, true),
};

let at = 8;
while (at < batch.length) {
  const [name, kernel] = kernels[Number(get.i8(at))];
  const n = get.i8(at + 8);
  at += 16;
  const scalars = kernel.scalars.map((kind, i) => get[kind](at + 8 * i));
  const result = at + 8 * scalars.length;
  at = result + 8;
  const arrays = [];
  for (const _ of kernel.arrays) {
    arrays.push(start + at + 8);
    at += 8 + Math.ceil(Number(get.i8(at)) / 8) * 8;
  }
  const value = exports[`kellet_${name}`](...arrays, ...scalars, n);
  if (kernel.result) set[kernel.result](result, value);
}
for (let done = 0; done < room.length; ) done += writeSync(1, room, done);
