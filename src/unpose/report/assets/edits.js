// Changes by the user: the group of each image, which images are settled, names, hidden groups. A state is an immutable
// value; undo and redo keep what is different.
const N = data.names.length;
const found = {
  group: Int32Array.from(data.labels),
  settled: Uint8Array.from(data.settled ?? new Array(N).fill(0)), // images whose name a person has accepted
  names: data.clusters.map((_, c) => data.groupNames?.[c] ?? ""), // empty: not named yet
  origins: data.clusters.map((_, c) => `Group ${c}`), // what a group without a name is called
  hidden: data.clusters.map(() => false),
  banned: [], // images that are not of a group, as image + N * group
};
let edits = found;
const past = [], future = [];
const watchers = [];
let unsaved = false;

const announce = (text) => { find("status").textContent = text; };

// Called after each edit. Parts of the page that are out of sight wait until they are seen.
function onEdit(act, element = null) {
  if (!element) return watchers.push(act);
  let stale = false;
  const isSeen = () => { const box = element.getBoundingClientRect(); return box.bottom > 0 && box.top < innerHeight; };
  watchers.push(() => { if (isSeen()) act(); else stale = true; });
  new IntersectionObserver(([entry]) => { if (entry.isIntersecting && stale) { stale = false; act(); } }).observe(element);
}

// What turns the second state into the first.
function difference(first, second) {
  const images = [];
  for (let i = 0; i < N; i++) if (first.group[i] !== second.group[i] || first.settled[i] !== second.settled[i]) images.push(i);
  const { names, origins, hidden, banned } = first;
  return { names, origins, hidden, banned, images, group: images.map((i) => first.group[i]), settled: images.map((i) => first.settled[i]) };
}

function restored(state, { images, group, settled, ...others }) {
  const next = { ...others, group: state.group.slice(), settled: state.settled.slice() };
  images.forEach((image, k) => { next.group[image] = group[k]; next.settled[image] = settled[k]; });
  return next;
}

function change(next, message) {
  const before = edits;
  edits = { ...edits, ...next };
  past.push(difference(before, edits));
  future.length = 0;
  unsaved = true;
  watchers.forEach((act) => act());
  announce(message);
}

function step(from, to, message) {
  if (!from.length) return;
  const before = edits;
  edits = restored(edits, from.pop());
  to.push(difference(before, edits));
  unsaved = true;
  watchers.forEach((act) => act());
  announce(message);
}

const undo = () => step(past, future, "Undone.");
const redo = () => step(future, past, "Done again.");

const nameOf = (group) => (group === NO_GROUP ? "No group" : edits.names[group] || edits.origins[group]);
const isNamed = (group) => group !== NO_GROUP && edits.names[group] !== "";
const isHidden = (group) => group !== NO_GROUP && edits.hidden[group];
const isFound = (group) => group >= 0 && group < data.clusters.length; // has a mean; others were made by hand

// Images of each group in order of decreasing confidence, and the found clusters that are mostly in it.
const ranked = [...data.names.keys()].sort((a, b) => data.confidences[b] - data.confidences[a] || a - b);
const clusterSizes = new Map();
for (const label of data.labels) clusterSizes.set(label, (clusterSizes.get(label) ?? 0) + 1);
let sorted = { of: null, members: new Map(), parts: new Map() };

function sortedInto() {
  if (sorted.of === edits.group) return sorted;
  const members = new Map(), shared = new Map(), parts = new Map(), home = new Map();
  for (const image of ranked) {
    const group = edits.group[image], label = data.labels[image], key = label * 1e6 + group;
    if (!members.has(group)) members.set(group, []);
    members.get(group).push(image);
    shared.set(key, (shared.get(key) ?? 0) + 1);
    if (!home.has(label) || shared.get(key) > shared.get(label * 1e6 + home.get(label))) home.set(label, group);
  }
  for (const label of [...home.keys()].sort((a, b) => a - b)) {
    for (const group of members.keys()) {
      const count = shared.get(label * 1e6 + group) ?? 0;
      if (count && (group === label || 2 * count >= clusterSizes.get(label))) parts.set(group, [...(parts.get(group) ?? []), label]);
    }
  }
  sorted = { of: edits.group, members, parts, home };
  return sorted;
}

const membersOf = (group) => sortedInto().members.get(group) ?? [];
const partsOf = (group) => sortedInto().parts.get(group) ?? [];
const groupOf = (label) => sortedInto().home.get(label) ?? label; // the group that most of a cluster is in
const groups = () => [...sortedInto().members.keys()].filter((group) => group !== NO_GROUP).sort((a, b) => a - b);
const sizeOf = (group) => membersOf(group).length;

function confidenceOf(group) {
  const inside = membersOf(group).filter((i) => data.labels[i] !== NO_GROUP);
  return inside.reduce((sum, i) => sum + data.clusters[data.labels[i]].confidence, 0) / (inside.length || 1);
}

// Copies of an image are named with it.
const copiesOf = new Map();
for (const [copy, first] of data.copies) copiesOf.set(first, [...(copiesOf.get(first) ?? []), copy]);
const withCopies = (images) => (copiesOf.size ? [...new Set(images.flatMap((i) => [i, ...(copiesOf.get(i) ?? [])]))] : images);

// The state with images in a group, settled or not.
function placed(images, group, settled, state = edits) {
  const next = { ...state, group: state.group.slice(), settled: state.settled.slice() };
  for (const image of withCopies(images)) { next.group[image] = group; next.settled[image] = settled; }
  return next;
}

// The state with one more group, and the number of that group.
function withGroup(name, origin, state = edits) {
  const next = { ...state, names: [...state.names, name], origins: [...state.origins, origin], hidden: [...state.hidden, false] };
  return [next, state.names.length];
}

const groupNamed = (name, state = edits) => state.names.indexOf(name);

function rename(group, name) {
  const newName = name.trim(), other = newName ? groupNamed(newName) : -1;
  if (newName === edits.names[group] || newName === nameOf(group)) return;
  if (other >= 0 && sizeOf(other)) return merge([other, group], other);
  change({ names: edits.names.with(group, newName) },
    `${visible(nameOf(group))} is now called ${visible(newName || edits.origins[group])}.`);
}

function merge(list, target = list.reduce((a, b) => (sizeOf(b) > sizeOf(a) ? b : a))) {
  const others = list.filter((g) => g !== target), moved = new Set(others);
  const name = edits.names[target] || (others.map((g) => edits.names[g]).find(Boolean) ?? "");
  const names = edits.names.map((old, g) => (g === target ? name : moved.has(g) ? "" : old));
  const message = `Merged ${others.map(nameOf).map(visible).join(", ")} into ${visible(nameOf(target))}.`;
  change({ group: edits.group.map((g) => (moved.has(g) ? target : g)), names }, message);
  return target;
}

function hide(list, hidden) {
  change(
    { hidden: edits.hidden.map((old, g) => (list.includes(g) ? hidden : old)) },
    `${hidden ? "Hid" : "Shown again:"} ${list.map(nameOf).map(visible).join(", ")}.`,
  );
}
