// The pile of images that the switch sorts into groups and aligns, and the histogram of confidences.
const STORY_ROWS = 4;

function drawStory() {
  const stage = find("story"), width = stage.clientWidth;
  const side = Math.min(60, Math.max(40, width / 12.5)), gap = side / 6;
  const pitchY = (side * data.image[1]) / Math.max(...data.image) + gap;
  const tilesPerRow = Math.floor((width + gap) / (side + gap));
  const largest = groups().filter((g) => !isHidden(g)).sort(ORDERS.size).slice(0, tilesPerRow);
  const across = Math.max(1, Math.min(8, Math.floor((tilesPerRow + 1) / largest.length) - 1)); // with few groups, more images of each
  const block = across * (side + gap) - gap;
  const pitchX = Math.min(across > 1 ? block + 0.8 * side : 1.6 * side, width / Math.max(1, largest.length));
  const left = (width - pitchX * largest.length) / 2 + (pitchX - block) / 2;
  const cells = [];
  largest.forEach((group, column) => {
    const some = membersOf(group).filter((i) => pictured.has(i)).slice(0, STORY_ROWS * across);
    some.forEach((image, i) => cells.push([
      image, left + column * pitchX + (i % across) * (side + gap), Math.floor(i / across) * pitchY]));
  });
  const foot = Math.max(0, ...cells.map(([, , y]) => y)) + pitchY;
  const shuffled = shuffle(cells.map(([, x, y]) => [x, y]));
  const at = (x, y) => `translate(${x}px, ${y}px)`;
  const tiles = cells.map(([image, x, y], i) => {
    const element = tile(image, side);
    const [fromX, fromY] = shuffled[i];
    element.style.setProperty("--found", at(fromX + 0.5 * side * (noise(i + 3) - 0.5), fromY + 0.5 * side * (noise(i) - 0.5)));
    element.style.setProperty("--sorted", at(x, y));
    element.style.setProperty("--late", `${Math.round(260 * noise(i + 7))}ms`);
    return element;
  });
  const names = largest.map((group, column) => make("span", {
    className: "story-name",
    style: { transform: at(left + column * pitchX + (block - pitchX) / 2, foot), width: `${pitchX}px` },
  }, mark(group), make("bdi", {}, visible(nameOf(group)))));
  stage.style.setProperty("height", `${Math.ceil(foot + 34)}px`);
  stage.replaceChildren(...tiles, ...names);
}

// Pseudo-random numbers without a seed, so that the page always looks the same.
const noise = (i) => { const x = Math.sin(12.9898 * (i + 1)) * 43758.5453; return x - Math.floor(x); };
const shuffle = (list) => list.map((item, i) => [noise(3 * i + 1), item]).sort((a, b) => a[0] - b[0]).map(([, item]) => item);

function drawConfidences() {
  if (data.stability === null) return;
  const bins = new Array(25).fill(0);
  data.confidences.forEach((value, i) => {
    if (data.labels[i] !== NO_GROUP) bins[Math.min(24, Math.floor(value * 25))] += 1;
  });
  const most = Math.max(...bins, 1);
  const svg = find("confidences");
  svg.setAttribute("aria-label", "Histogram of the confidences: " + bins.map((count, b) => [b, count])
    .filter(([, count]) => count).map(([b, count]) => `${count} at ${4 * b} to ${4 * b + 4}%`).join(", "));
  bins.forEach((count, b) => {
    const height = count ? Math.max(1, (46 * count) / most) : 0.5;
    svg.append(makeSvg("rect", { x: 8 * b + 1, y: 48 - height, width: 6, height, rx: 1 }));
  });
}
