// The data of the page, and functions that create elements. Names are set as text, never interpreted as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const NO_GROUP = -1;
const still = matchMedia("(prefers-reduced-motion: reduce)");
const find = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (name === "style") for (const [key, rule] of Object.entries(value)) element.style.setProperty(key, rule);
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null)); // strings become text nodes
  return element;
}

function makeSvg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const percent = (share) => `${Math.round(100 * share)}%`;
const confidenceText = (share) => (data.stability === null ? "confidence unknown" : `${percent(share)} confidence`);
const twoDigits = (value) => (value < 10 ? value.toPrecision(2) : String(Math.round(value)));

// A file name for display: characters that break lines or reverse the text direction are escaped.
const visible = (name) =>
  name.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g, (character) =>
    character === "\n" ? "\\n" : character === "\t" ? "\\t" : `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`,
  ).toWellFormed();
const fileName = (name) => make("bdi", { className: "file" }, visible(name));

// Arrow keys move the focus to the nearest element in that direction.
const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function nearest(from, candidates, [dx, dy]) {
  let best = null, least = Infinity;
  for (const [candidate, x, y] of candidates) {
    const along = (x - from[0]) * dx + (y - from[1]) * dy;
    const across = Math.abs((x - from[0]) * dy) + Math.abs((y - from[1]) * dx);
    if (along > 1e-6 && along + 3 * across < least && (across <= 2 * along)) {
      [best, least] = [candidate, along + 3 * across];
    }
  }
  return best;
}

function moveFocusByArrows(container, selector) {
  container.addEventListener("keydown", (event) => {
    const direction = DIRECTIONS[event.key];
    const here = event.target.closest(selector);
    if (!direction || !here || event.ctrlKey || event.metaKey || event.altKey) return;
    const centre = (element) => {
      const box = element.getBoundingClientRect();
      return [element, box.x + box.width / 2, box.y + box.height / 2];
    };
    const others = [...container.querySelectorAll(selector)].filter((element) => element !== here).map(centre);
    const next = nearest(centre(here).slice(1), others, direction);
    event.preventDefault();
    next?.focus();
  });
}
