// Pictures from the sprite sheets. A tile shows the image as found; its pose is a CSS transform that the switch enables.
const addresses = new Map();

function address(sheet) {
  if (!addresses.has(sheet)) {
    const bytes = decoded(find(`sheet-${sheet}`).textContent, Uint8Array);
    addresses.set(sheet, `url("${URL.createObjectURL(new Blob([bytes], { type: "image/webp" }))}")`);
  }
  return addresses.get(sheet);
}

function place(element, sheet, index, width) {
  const { columns, size: [w, h], count } = data.sheets[sheet];
  const unit = width / w, pitch = [w + 2 * data.margin, h + 2 * data.margin];
  const at = [(index % columns) * pitch[0] + data.margin, Math.floor(index / columns) * pitch[1] + data.margin];
  const whole = [columns * pitch[0], Math.ceil(count / columns) * pitch[1]];
  element.style.setProperty("background-image", address(sheet));
  element.style.setProperty("background-size", `${whole[0] * unit}px ${whole[1] * unit}px`);
  element.style.setProperty("background-position", `${-at[0] * unit}px ${-at[1] * unit}px`);
}

function cut(sheet, index, width, name = "picture") {
  const [w, h] = data.sheets[sheet].size;
  const element = make("div", { className: name, style: { width: `${width}px`, height: `${Math.round((width * h) / w)}px` } });
  place(element, sheet, index, width);
  return element;
}

const pictured = new Map(data.shown.map((image, position) => [image, position]));
// Whole pixels, so that pictures stay sharp.
const tileWidth = (side) => Math.max(1, Math.round((side * data.image[0]) / Math.max(...data.image)));

// The pose as a CSS transform. Both have x to the right and y down from the centre; only the unit of length differs.
function transformOf(image, width) {
  const unit = width / data.image[0];
  const [a, c, x, b, d, y] = data.poses[image];
  const tilt = data.tilts?.[image];
  if (!tilt || (tilt[0] === 0 && tilt[1] === 0)) return `matrix(${a},${b},${c},${d},${x * unit},${y * unit})`;
  return `matrix3d(${a},${b},0,${tilt[0] / unit},${c},${d},0,${tilt[1] / unit},0,0,1,0,${x * unit},${y * unit},0,1)`;
}

function poseable(image, side) {
  const width = tileWidth(side), position = pictured.get(image);
  const element = cut(`thumbnails-${Math.floor(position / data.perSheet)}`, position % data.perSheet, width, "poseable");
  element.style.setProperty("--pose", transformOf(image, width));
  return element;
}

// Pixels from outside an image take the median of its border, as in exported images.
const fill = (image) => ({ "--outside": `#${data.fills[pictured.get(image)]}` });

function tile(image, side) {
  return make("div", { className: "tile", style: fill(image) }, poseable(image, side));
}

// Layers with opacity 1/(i + 1) from the bottom up show their average, also while they move.
function stack(images, side) {
  const layers = images.map((image, i) =>
    make("div", { className: "layer", style: { ...fill(image), opacity: `${1 / (i + 1)}` } }, poseable(image, side)));
  const width = tileWidth(side);
  const height = Math.round((width * data.image[1]) / data.image[0]);
  return make("div", { className: "stack", style: { width: `${width}px`, height: `${height}px` } }, ...layers);
}

// The switch appears in several places; all of them and all tiles follow one attribute of the page.
let switches = [];
const forgetSwitches = (inside) => { switches = switches.filter((button) => !inside.contains(button)); };

function setAligned(aligned) {
  document.documentElement.toggleAttribute("data-aligned", aligned);
  switches.forEach((button) => button.setAttribute("aria-checked", String(aligned)));
}

const isAligned = () => document.documentElement.hasAttribute("data-aligned");

function poseSwitch() {
  const button = make("button", {
    type: "button", className: "switch", role: "switch", "aria-label": "Align the images",
    on: { click: () => setAligned(!isAligned()) },
  }, make("span", {}, "As found"), make("span", {}, "Aligned"));
  button.setAttribute("aria-checked", String(isAligned()));
  switches.push(button);
  return button;
}

// The mark of a group: a colour and a shape, so that groups can be distinguished without colour.
const SHAPES = [
  "M1 0A1 1 0 1 1-1 0A1 1 0 1 1 1 0Z", "M-.9-.9H.9V.9H-.9Z", "M0-1.15 1.1.85H-1.1Z", "M0-1.25 1.25 0 0 1.25-1.25 0Z",
  "M-.4-1.15H.4V-.4H1.15V.4H.4V1.15H-.4V.4H-1.15V-.4H-.4Z", "M0 1.15 1.1-.85H-1.1Z",
  "M-.75-1.2 0-.5.75-1.2 1.2-.75.5 0 1.2.75.75 1.2 0 .5-.75 1.2-1.2.75-.5 0-1.2-.75Z",
];
const shapeOf = (group) => SHAPES[group === NO_GROUP ? 0 : group % SHAPES.length];

function colourOf(group, ink) {
  if (group === NO_GROUP) return "#9a9a9a";
  const colour = data.palette[group % data.palette.length];
  return colour.some((part) => part > 0) ? `rgb(${colour.join(",")})` : ink; // black would be invisible in the dark theme
}

function mark(group) {
  const path = makeSvg("path", { d: shapeOf(group), fill: colourOf(group, "currentColor") });
  return makeSvg("svg", { viewBox: "-1.4 -1.4 2.8 2.8", class: "mark", "aria-hidden": "true" }, path);
}
