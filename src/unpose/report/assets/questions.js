// The workbench without its view: names spread over the graph, the questions to ask, and what an answer changes.
const FEWEST = 4; // smaller rests of a group join the images without a group
const SURE = 0.5; // share of the scores beyond which an image is proposed
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
const spread = { state: null, columns: new Map(), rival: null, best: new Int32Array(N), share: new Float64Array(N), reach: null };

const isOpen = (group) => group !== NO_GROUP && !isNamed(group);
const isAsked = (image) => !edits.settled[image] && graph.degree[image] > 0; // copies and empty images follow others

function refreshSpread() {
  const before = spread.state, changed = new Set();
  let rivalsChanged = !before;
  for (let i = 0; i < N; i++) {
    const is = edits.group[i], was = before ? before.group[i] : NaN;
    if (before && is === was && edits.settled[i] === before.settled[i]) continue;
    if (edits.settled[i]) changed.add(is);
    if (before?.settled[i]) changed.add(was);
    rivalsChanged = true;
  }
  const rivals = new Map(); // groups that are not named yet compete with those that are
  for (const group of groups()) {
    const settled = membersOf(group).filter((i) => edits.settled[i] && graph.degree[i] > 0);
    if (!settled.length) spread.columns.delete(group);
    else if (changed.has(group) || !spread.columns.has(group)) spread.columns.set(group, spreadScores(graph, startOf(N, settled)));
    if (isOpen(group)) rivals.set(group, membersOf(group).filter(isAsked));
  }
  for (const group of spread.columns.keys()) if (!sizeOf(group)) spread.columns.delete(group);
  if (rivalsChanged) {
    const initial = new Float64Array(N);
    for (const list of rivals.values()) for (const i of list) initial[i] = 1 / list.length;
    spread.rival = spreadScores(graph, initial);
    spread.initial = initial;
  }
  spread.state = edits;
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

// How much of an image's score comes from its own group, without what it gives to itself.
function ownShares(group, images) {
  const column = spreadScores(graph, startOf(N, images));
  return images.map((i) => {
    const own = (1 - MEMORY) / images.length, others = spread.total[i] - own;
    return others > 1e-300 ? Math.max(0, column[i] - own) / others : 0;
  });
}

const byScore = (images, scores) => {
  const order = [...images.keys()].sort((a, b) => scores[b] - scores[a] || images[a] - images[b]);
  return { images: order.map((k) => images[k]), scores: order.map((k) => scores[k]) };
};

const firstBelow = (scores, limit) => { const at = scores.findIndex((score) => score < limit); return at < 0 ? scores.length : at; };

function groupQuestion(group) {
  const asked = membersOf(group).filter(isAsked), list = byScore(asked, ownShares(group, asked));
  const likely = likelyNames(list.images)[0];
  return { kind: "group", group, ...list, cut: firstBelow(list.scores, SURE) || list.images.length, name: likely && likely[1] > SURE ? nameOf(likely[0]) : "" };
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
  return { kind: "image", group: NO_GROUP, images: [image], scores: [spread.share[image]], cut: 1, name: spread.best[image] === NO_GROUP ? "" : nameOf(spread.best[image]) };
}

function makeQuestion({ kind, id }) {
  return { group: groupQuestion, class: classQuestion, grow: growQuestion, image: imageQuestion }[kind](id);
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
    const sure = (i) => (data.stability === null ? 0.5 : data.confidences[i]);
    if (asked.length) list.push({ kind: "group", id: group, gain: asked.reduce((sum, i) => sum + sure(i), 0) });
  }
  for (let i = 0; i < N; i++) {
    if (spread.best[i] !== NO_GROUP && spread.share[i] >= SURE && isAsked(i)) gains.set(spread.best[i], (gains.get(spread.best[i]) ?? 0) + spread.share[i]);
  }
  for (const [group, gain] of gains) list.push({ kind: "class", id: group, gain });
  list.sort((a, b) => b.gain - a.gain);
  if (spread.reach && (!list.length || list[0].gain < FEWEST)) {
    const known = Uint8Array.from(edits.settled, (s, i) => (s || graph.degree[i] === 0 ? 1 : 0));
    const uncertainty = Float64Array.from(spread.share, (share, i) => (known[i] ? 0 : 1 - share));
    list.push(...mostInstructive(spread.reach, known, uncertainty, 3).map(([id, gain]) => ({ kind: "image", id, gain })));
  }
  return list.sort((a, b) => b.gain - a.gain);
}

// Answers. Each is one change, and each can be undone.
function settle(question, images, name, refused = []) {
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
  const next = placed(images, NO_GROUP, 0);
  const banned = question.kind === "group" ? edits.banned : [...edits.banned, ...images.map((i) => i + N * question.group)];
  change({ ...(question.kind === "group" ? next : edits), banned },
    `${counted(images.length, "image")} ${question.kind === "group" ? "left the group" : `are not ${visible(nameOf(question.group))}`}.`);
}

function split(question) {
  const [, second] = splitInTwo(graph, question.images).sort((a, b) => b.length - a.length);
  const [next, group] = withGroup("", `Part of ${nameOf(question.group)}`);
  change(placed(second, group, 0, next), `${visible(nameOf(question.group))} was split into ${question.images.length - second.length} and ${second.length}.`);
}

// Progress: images that are settled, and how many of them rightly, estimated by the settled neighbours of each.
function progressOf() {
  let settled = 0, agreeing = 0, judged = 0;
  for (let i = 0; i < N; i++) {
    if (!edits.settled[i]) continue;
    settled++;
    let same = 0, all = 0;
    for (let e = graph.start[i]; e < graph.start[i + 1]; e++) {
      if (!edits.settled[graph.to[e]]) continue;
      all += graph.weight[e];
      if (edits.group[graph.to[e]] === edits.group[i]) same += graph.weight[e];
    }
    if (all > 0) { judged++; agreeing += same > all / 2 ? 1 : 0; }
  }
  return { settled, precision: judged ? agreeing / judged : null };
}
