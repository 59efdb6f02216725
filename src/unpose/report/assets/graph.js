// Labels spread over the attention matrix, as unpose.cluster.labels computes them. Pure functions of typed arrays.
const MEMORY = 0.95; // share of an image's score that comes from its neighbours in every step
const STEPS = 60;
const REACH = 64, REACH_STEPS = 4; // images that one labelled image can teach

// The matrix D^-1/2 W D^-1/2 in rows, from the entries above the diagonal: how many in each row, columns and weights.
function symmetricWalk(counts, columns, weights) {
  const n = counts.length, start = new Int32Array(n + 1), degree = new Float64Array(n);
  const each = (act) => { for (let i = 0, e = 0; i < n; i++) for (const end = e + counts[i]; e < end; e++) act(i, columns[e], weights[e]); };
  each((i, j, w) => { start[i + 1]++; degree[i] += w; if (i !== j) { start[j + 1]++; degree[j] += w; } });
  for (let i = 0; i < n; i++) start[i + 1] += start[i];
  const to = new Int32Array(start[n]), walk = new Float32Array(start[n]), weight = new Float32Array(start[n]), next = start.slice(0, n);
  const put = (i, j, w) => { to[next[i]] = j; weight[next[i]] = w; walk[next[i]++] = w / Math.sqrt(degree[i] * degree[j]); };
  each((i, j, w) => { put(i, j, w); if (i !== j) put(j, i, w); });
  return { n, start, to, walk, weight, degree };
}

// F <- a S F + (1 - a) Y for two classes at once, which takes less than one after the other: scores (n,) from starts (n,).
// A generator, so that a page can compute it in slices; it yields after every step.
function* spreading(graph, first, second) {
  const { n, start, to, walk } = graph, initial = new Float64Array(2 * n);
  for (let i = 0; i < n; i++) { initial[2 * i] = first[i]; initial[2 * i + 1] = second[i]; }
  let scores = initial.slice(), next = new Float64Array(2 * n);
  for (let step = 0; step < STEPS; step++) {
    for (let i = 0, e = 0; i < n; i++) {
      let one = 0, two = 0;
      for (const end = start[i + 1]; e < end; e++) {
        const from = 2 * to[e], share = walk[e];
        one += share * scores[from];
        two += share * scores[from + 1];
      }
      next[2 * i] = MEMORY * one + (1 - MEMORY) * initial[2 * i];
      next[2 * i + 1] = MEMORY * two + (1 - MEMORY) * initial[2 * i + 1];
    }
    [scores, next] = [next, scores];
    yield;
  }
  const column = (k) => Float64Array.from({ length: n }, (_, i) => scores[2 * i + k]);
  return [column(0), column(1)];
}

function finished(steps) {
  for (;;) { const { done, value } = steps.next(); if (done) return value; }
}

const spreadScores = (graph, initial) => finished(spreading(graph, initial, new Float64Array(graph.n)))[0];

// The start of a class: the same total for every class, whatever the number of its labelled images.
function startOf(n, images) {
  const initial = new Float64Array(n);
  for (const image of images) initial[image] = 1 / images.length;
  return initial;
}

// How likely two steps of a random walk from images end in their own group, into shares (n,): low on the edge of a group.
function stayingShares(graph, group, images, shares) {
  const { start, to, weight, degree } = graph;
  for (const i of images) {
    let sum = 0;
    for (let e = start[i]; e < start[i + 1]; e++) {
      const j = to[e], first = weight[e] / degree[i] / degree[j];
      for (let f = start[j]; f < start[j + 1]; f++) if (group[to[f]] === group[i] && to[f] !== i) sum += first * weight[f];
    }
    shares[i] = sum;
  }
}

// The entries of a list with the largest values; of equal ones the first in order.
function largest(list, value, count) {
  const values = Float64Array.from(list, (j) => value[j]);
  for (let low = 0, high = values.length - 1; low < high;) { // brings the largest to the front
    const middle = values[(low + high) >> 1];
    let a = low, b = high;
    while (a <= b) {
      while (values[a] > middle) a++;
      while (values[b] < middle) b--;
      if (a <= b) { const swap = values[a]; values[a++] = values[b]; values[b--] = swap; }
    }
    if (count - 1 <= b) high = b; else if (count - 1 >= a) low = a; else break;
  }
  const least = values[count - 1], above = list.filter((j) => value[j] > least);
  const equal = list.filter((j) => value[j] === least).sort((a, b) => a - b);
  return [...above, ...equal.slice(0, count - above.length)];
}

// How far a walk of a few steps from each image (column) reaches the others (row): the largest entries of each row.
// A generator, so that a page can compute it in slices: it yields after every few hundred rows.
function* reachOf(graph) {
  const { n, start, to, walk } = graph, value = new Float64Array(n);
  const own = Array.from({ length: n }, (_, i) => ({ to: Int32Array.of(i), value: Float64Array.of(1) }));
  const steps = [own];
  let touched = [];
  const taken = (list) => ({ to: Int32Array.from(list), value: Float64Array.from(list, (j) => value[j]) });
  const clear = () => { for (const j of touched) value[j] = 0; touched = []; };
  for (let step = 0; step < REACH_STEPS; step++) {
    const rows = steps.at(-1), next = new Array(n);
    for (let i = 0; i < n; i++) {
      for (let e = start[i]; e < start[i + 1]; e++) {
        const row = rows[to[e]], share = MEMORY * walk[e];
        for (let k = 0; k < row.to.length; k++) {
          const j = row.to[k];
          if (value[j] === 0) touched.push(j);
          value[j] += share * row.value[k];
        }
      }
      next[i] = taken(touched.length > REACH ? largest(touched, value, REACH) : touched);
      clear();
      if (i % 512 === 511) yield;
    }
    steps.push(next);
  }
  const sums = new Array(n), first = new Int32Array(n + 1);
  for (let i = 0; i < n; i++) {
    for (const rows of steps) {
      rows[i].to.forEach((j, k) => { if (value[j] === 0) touched.push(j); value[j] += rows[i].value[k]; });
    }
    sums[i] = taken(touched);
    first[i + 1] = first[i] + touched.length;
    clear();
    if (i % 512 === 511) yield;
  }
  const reach = { n, start: first, to: new Int32Array(first[n]), value: new Float64Array(first[n]) };
  sums.forEach((row, i) => { reach.to.set(row.to, first[i]); reach.value.set(row.value, first[i]); });
  return reach;
}

// The images whose label would teach most about the others, best first, with what each adds: [image, gain].
function mostInstructive(reach, known, uncertainty, count) {
  const { n, start, to, value } = reach;
  const covered = new Float64Array(n), taken = Uint8Array.from(known);
  const cover = (is) => { for (let i = 0, e = 0; i < n; i++) for (; e < start[i + 1]; e++) if (is(to[e]) && value[e] > covered[i]) covered[i] = value[e]; };
  cover((j) => taken[j]);
  const chosen = [];
  while (chosen.length < count) {
    const gain = new Float64Array(n);
    for (let i = 0, e = 0; i < n; i++) for (; e < start[i + 1]; e++) {
      if (value[e] > covered[i]) gain[to[e]] += (value[e] - covered[i]) * uncertainty[i];
    }
    let best = -1;
    for (let j = 0; j < n; j++) if (!taken[j] && (best < 0 || gain[j] > gain[best])) best = j;
    if (best < 0) break;
    chosen.push([best, gain[best]]);
    taken[best] = 1;
    if (chosen.length < count) cover((j) => j === best);
  }
  return chosen;
}

// Two parts of a group: the cut with the least normalised weight along the second eigenvector of its walk.
function splitInTwo(graph, images) {
  const local = new Map(images.map((image, i) => [image, i])), m = images.length;
  const links = images.map((image) => {
    const list = [];
    for (let e = graph.start[image]; e < graph.start[image + 1]; e++) {
      if (local.has(graph.to[e])) list.push([local.get(graph.to[e]), graph.weight[e]]);
    }
    return list;
  });
  const degree = Float64Array.from(links, (list) => list.reduce((sum, [, w]) => sum + w, 1e-9));
  const volume = degree.reduce((sum, d) => sum + d, 0);
  let vector = Float64Array.from({ length: m }, (_, i) => Math.sin(12.9898 * (i + 1)));
  for (let step = 0; step < 300; step++) { // lazy walk without its first eigenvector, which is constant
    const middle = vector.reduce((sum, v, i) => sum + v * degree[i], 0) / volume;
    const next = new Float64Array(m);
    for (let i = 0; i < m; i++) {
      let sum = 0;
      for (const [j, w] of links[i]) sum += w * (vector[j] - middle);
      next[i] = 0.5 * (vector[i] - middle) + (0.5 * sum) / degree[i];
    }
    const norm = Math.sqrt(next.reduce((sum, v) => sum + v * v, 0)) || 1;
    vector = next.map((v) => v / norm);
  }
  const order = [...vector.keys()].sort((a, b) => vector[a] - vector[b]), inside = new Uint8Array(m);
  let cut = 0, part = 0, best = Infinity, at = m >> 1;
  order.slice(0, -1).forEach((i, rank) => {
    for (const [j, w] of links[i]) if (j !== i) cut += inside[j] ? -w : w;
    inside[i] = 1;
    part += degree[i];
    const cost = cut / part + cut / (volume - part);
    if (rank + 1 >= m / 10 && rank + 1 <= m - m / 10 && cost < best) [best, at] = [cost, rank + 1];
  });
  return [order.slice(0, at).map((i) => images[i]), order.slice(at).map((i) => images[i])];
}
