// The workbench without its view: names spread over the graph, the questions to ask, and what an answer changes.
const FEWEST = 4; // smaller rests of a group join the images without a group
const SURE = 0.5; // share of the scores beyond which an image is proposed
const TAUGHT = 0.1; // images settled later for each image that a label teaches
const CHECKED = 24; // images of one check
const PAUSE = 60; // seconds; longer breaks do not count as work

function decoded(text, Type) {
  const bytes = atob(text), array = new Uint8Array(bytes.length);
  for (let i = 0; i < bytes.length; i++) array[i] = bytes.charCodeAt(i);
  return new Type(array.buffer);
}

function readGraph({ counts, columns, weights }) {
  const Index = N > 65535 ? Uint32Array : Uint16Array;
  return symmetricWalk(decoded(counts, Index), decoded(columns, Index), decoded(weights, Float32Array));
}

const graph = data.graph ? readGraph(data.graph) : null;

// Scores of every named group (class), of all groups without a name together (rivals), and what follows from them.
const spread = {
  state: null, columns: new Map(), stale: new Set(), rival: new Float64Array(N), running: null, reach: null,
  best: new Int32Array(N).fill(NO_GROUP), share: new Float64Array(N), total: new Float64Array(N), own: new Float64Array(N),
};
const AT_ONCE_SPREAD = 1e5; // weights; more are spread in slices of a few milliseconds, after the answer is shown

const isOpen = (group) => group !== NO_GROUP && !membersOf(group).some((i) => edits.settled[i]); // nobody has accepted its name
const isAsked = (image) => !edits.settled[image] && graph.degree[image] > 0; // copies and empty images follow others

// Brings the scores up to date with the edits, and calls an act if that ends later.
function refreshSpread(then) {
  const before = spread.state, moved = new Set();
  for (let i = 0; i < N; i++) {
    const is = edits.group[i], was = before ? before.group[i] : NO_GROUP;
    if (before && is === was && edits.settled[i] === before.settled[i]) continue;
    if (is !== was || !before) moved.add(is).add(was);
    if (edits.settled[i]) spread.stale.add(is);
    if (before?.settled[i]) spread.stale.add(was);
  }
  spread.state = edits;
  for (const group of moved) stayingShares(graph, edits.group, membersOf(group), spread.own);
  const steps = spreadingAll();
  spread.running = steps;
  if (graph.to.length <= AT_ONCE_SPREAD) return finished(steps);
  const slice = () => {
    const until = performance.now() + 12;
    while (spread.running === steps && performance.now() < until) if (steps.next().done) return then();
    if (spread.running === steps) setTimeout(slice);
  };
  setTimeout(slice);
}

// What is still being spread is finished now.
const finishSpread = () => { if (spread.running) finished(spread.running); };

function* spreadingAll() {
  const rivals = new Float64Array(N), todo = []; // groups that are not named yet compete with those that are
  for (const group of groups()) {
    if (spread.stale.has(group)) todo.push([group, membersOf(group).filter((i) => edits.settled[i] && graph.degree[i] > 0)]);
    if (!isOpen(group)) continue;
    const asked = membersOf(group).filter(isAsked);
    for (const i of asked) rivals[i] = 1 / asked.length;
  }
  for (const group of spread.stale) spread.columns.delete(group);
  // Most answers change one name, whose scores are spread together with those of the rivals.
  const pairs = todo.filter(([, settled]) => settled.length);
  const last = pairs.pop();
  for (const [group, settled] of pairs) {
    spread.columns.set(group, (yield* spreading(graph, startOf(N, settled), new Float64Array(N)))[0]);
    spread.stale.delete(group);
  }
  if (last || spread.columns.size) { // without a name there is nothing to compete with
    const [column, rival] = yield* spreading(graph, last ? startOf(N, last[1]) : new Float64Array(N), rivals);
    if (last) spread.columns.set(last[0], column);
    spread.rival = rival;
  }
  spread.stale.clear();
  compareScores();
  spread.running = null;
}

function compareScores() {
  const no = new Set(edits.banned), total = spread.rival.slice(), top = new Float64Array(N);
  spread.best.fill(NO_GROUP);
  for (const [group, column] of spread.columns) {
    for (let i = 0; i < N; i++) {
      total[i] += column[i];
      if (column[i] > top[i] && !edits.settled[i] && !(no.size && no.has(i + N * group))) { top[i] = column[i]; spread.best[i] = group; }
    }
  }
  spread.total = total;
  for (let i = 0; i < N; i++) spread.share[i] = total[i] > 1e-300 ? top[i] / total[i] : 0;
}

const byScore = (images, scores) => {
  const order = [...images.keys()].sort((a, b) => scores[b] - scores[a] || images[a] - images[b]);
  return { images: order.map((k) => images[k]), scores: order.map((k) => scores[k]) };
};

const firstBelow = (scores, limit) => { const at = scores.findIndex((score) => score < limit); return at < 0 ? scores.length : at; };

function groupQuestion(group) {
  const asked = membersOf(group).filter(isAsked), list = byScore(asked, asked.map((i) => spread.own[i]));
  const likely = likelyNames(list.images)[0];
  return { kind: "group", group, ...list, cut: firstBelow(list.scores, SURE * (list.scores[0] ?? 0)), name: edits.names[group] || (likely && likely[1] > SURE ? nameOf(likely[0]) : "") };
}

function classQuestion(group) {
  const images = [];
  for (let i = 0; i < N; i++) if (spread.best[i] === group && isAsked(i)) images.push(i);
  const list = byScore(images, images.map((i) => spread.share[i]));
  return { kind: "class", group, ...list, cut: firstBelow(list.scores, SURE), name: nameOf(group) };
}

// All that is near a group and not settled, nearest first, whatever it is taken for.
function growQuestion(group) {
  const seeds = membersOf(group), column = spread.columns.get(group) ?? spreadScores(graph, startOf(N, seeds));
  const no = new Set(edits.banned), images = [];
  for (let i = 0; i < N; i++) if (isAsked(i) && edits.group[i] !== group && column[i] > 0 && !no.has(i + N * group)) images.push(i);
  const list = byScore(images, images.map((i) => column[i] / (spread.total[i] + (spread.columns.has(group) ? 0 : column[i]))));
  return { kind: "grow", group, ...list, cut: Math.min(12, list.images.length), name: nameOf(group) };
}

function imageQuestion(image) {
  return { kind: "image", group: spread.best[image], images: [image], scores: [spread.share[image]], cut: 1, name: spread.best[image] === NO_GROUP ? "" : nameOf(spread.best[image]) };
}

function makeQuestion({ kind, id }) {
  return { group: groupQuestion, class: classQuestion, grow: growQuestion, image: imageQuestion, check: checkQuestion }[kind](id);
}

// Named groups with the mean share that they have in the scores of these images, largest first.
function likelyNames(images) {
  const some = images.filter((_, k) => k % Math.ceil(images.length / 200) === 0);
  return [...spread.columns].map(([group, column]) =>
    [group, some.reduce((sum, i) => sum + (spread.total[i] > 1e-300 ? column[i] / spread.total[i] : 0), 0) / (some.length || 1)])
    .sort((a, b) => b[1] - a[1] || a[0] - b[0]);
}

// What could be asked, by the number of images that an answer is expected to settle.
function rankedQuestions() {
  const list = [], gains = new Map();
  for (const group of groups().filter(isOpen)) {
    const asked = membersOf(group).filter(isAsked);
    if (asked.length) list.push({ kind: "group", id: group, gain: asked.reduce((sum, i) => sum + spread.own[i] ** 3, 0) });
  }
  for (let i = 0; i < N; i++) {
    if (spread.best[i] !== NO_GROUP && isAsked(i)) gains.set(spread.best[i], (gains.get(spread.best[i]) ?? 0) + spread.share[i] ** 3);
  }
  for (const [group, gain] of gains) list.push({ kind: "class", id: group, gain });
  list.sort((a, b) => b.gain - a.gain);
  const isLate = !list.length || list[0].gain < FEWEST; // single images are asked for when no group is left to ask for
  if (isLate) startReach();
  if (isLate && spread.reach) {
    const known = Uint8Array.from(edits.settled, (s, i) => (s || graph.degree[i] === 0 ? 1 : 0));
    const uncertainty = Float64Array.from(spread.share, (share, i) => (known[i] ? 0 : 1 - share));
    list.push(...mostInstructive(spread.reach, known, uncertainty, 3).map(([id, gain]) => ({ kind: "image", id, gain: 1 + TAUGHT * gain })));
  }
  return list.sort((a, b) => b.gain - a.gain);
}

// Answers. Each is one change, and each can be undone.
function settle(question, images, name, refused = []) {
  if (question.kind === "grow" && !isNamed(question.group) && name === nameOf(question.group)) { // it grows and is named later
    return change(placed(images, question.group, 0), `${counted(images.length, "image")} added to ${visible(name)}.`);
  }
  let next = edits, target = groupNamed(name);
  const isPart = images.length < question.images.length;
  if (target < 0 && question.kind === "group") {
    target = question.group;
    next = { ...next, names: next.names.with(target, name) };
    if (isPart) next = withoutRest(next, question, images);
  } else {
    if (target < 0) [next, target] = withGroup(name, name, next);
    if (question.kind === "group" && isPart) next = withoutRest(next, question, images);
  }
  next = placed(images, target, 1, next);
  if (refused.length) next = { ...next, banned: [...next.banned, ...refused.map((i) => i + N * target)] };
  change(next, `${counted(images.length, "image")} settled as ${visible(name)}.`);
}

// What is left of a group becomes a group of its own, or no group if it is small.
function withoutRest(state, question, images) {
  const taken = new Set(images), rest = question.images.filter((i) => !taken.has(i));
  if (rest.length < FEWEST) return placed(rest, NO_GROUP, 0, state);
  const origin = state.origins[question.group], [next, group] = withGroup("", origin.startsWith("Rest of") ? origin : `Rest of ${origin}`, state);
  return placed(rest, group, 0, next);
}

function reject(question, images) {
  const leaving = images.filter((i) => edits.group[i] === question.group);
  const banned = question.kind === "group" ? edits.banned : [...edits.banned, ...images.map((i) => i + N * question.group)];
  change({ ...placed(leaving, NO_GROUP, 0), banned },
    `${counted(images.length, "image")} ${question.kind === "group" ? "left the group" : `are not ${visible(nameOf(question.group))}`}.`);
}

function split(question) {
  const [, second] = splitInTwo(graph, question.images).sort((a, b) => b.length - a.length);
  const [next, group] = withGroup("", `Part of ${nameOf(question.group)}`);
  change(placed(second, group, 0, next), `${visible(nameOf(question.group))} was split into ${question.images.length - second.length} and ${second.length}.`);
}

// Random settled images of all names, to be looked at again.
function checkQuestion() {
  const images = [];
  for (let i = 0; i < N; i++) if (edits.settled[i]) images.push(i);
  const drawn = images.map((i) => [noise(i + 7919 * (edits.checks[1] + 1)), i]).sort((a, b) => a[0] - b[0]).slice(0, CHECKED).map(([, i]) => i);
  return { kind: "check", group: NO_GROUP, images: drawn, scores: drawn.map(() => 1), cut: drawn.length, name: "right" };
}

function confirm(question, images) {
  const inside = new Set(images), wrong = question.images.filter((i) => !inside.has(i)), [right, seen] = edits.checks;
  const banned = [...edits.banned, ...wrong.map((i) => i + N * edits.group[i])];
  change({ ...placed(wrong, NO_GROUP, 0), banned, checks: [right + images.length, seen + question.images.length] },
    `${images.length} of ${question.images.length} are right.`);
}

// Progress: images that are settled, and the share of right ones among those that were checked, with its standard error.
function progressOf() {
  const settled = edits.settled.reduce((sum, s) => sum + s, 0), [right, seen] = edits.checks;
  if (!seen) return { settled, precision: null };
  const share = (right + 1) / (seen + 2); // is never 0 or 1, so that the error is not either
  return { settled, precision: right / seen, margin: Math.sqrt((share * (1 - share)) / seen), seen };
}
