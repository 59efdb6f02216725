// Light and dark theme, small parts of the page, and the start of all parts.
const themeWatchers = [];
const onTheme = (act) => themeWatchers.push(act);

function startTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)"), root = document.documentElement;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const show = () => {
    find("theme").textContent = isDark() ? "Light" : "Dark";
    find("theme").setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
    themeWatchers.forEach((act) => act());
  };
  find("theme").addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; show(); });
  dark.addEventListener("change", show);
  show();
}

function startCopy() {
  find("copy").addEventListener("click", async () => {
    const text = data.run.command;
    try {
      await navigator.clipboard.writeText(text);
    } catch { // some browsers give local pages no clipboard: leave the command selected
      getSelection().selectAllChildren(find("command"));
      if (!document.execCommand("copy")) { find("copy").textContent = "Press Ctrl+C"; return; }
    }
    find("copy").textContent = "Copied";
    setTimeout(() => { find("copy").textContent = "Copy"; }, 1600);
  });
}

function startRejected() {
  find("rejected")?.append(...data.rejected.map(([name, reason]) =>
    make("tr", {}, make("td", {}, fileName(name)), make("td", {}, visible(reason)))));
}

function startCopies() {
  find("copies-list")?.append(...data.copies.map(([image, first]) => make("tr", {},
    ...[image, first].map((i) => make("td", {}, fileName(data.names[i]))))));
}

document.documentElement.style.setProperty("--outside", `rgb(${[data.outside, data.outside, data.outside].join(",")})`);
document.querySelector(".switch-place").append(poseSwitch());
if (data.worstError) find("error-scale").textContent = ` (its standard error, from black for 0 to yellow for ${twoDigits(data.worstError)})`;
recall();
startMap();
startTheme();
startCards();
startMembers();
startAttention();
startFilm();
startTable();
startCopy();
startRejected();
startCopies();
drawConfidences();
startBench();
startKeep();
drawStory();
onEdit(drawStory, find("story"));
let storyWidth = find("story").clientWidth;
new ResizeObserver(() => {
  if (find("story").clientWidth !== storyWidth) { storyWidth = find("story").clientWidth; drawStory(); }
}).observe(find("story"));
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input[type=text], input[type=search]");
  if (!(event.ctrlKey || event.metaKey) || typing || !/^[zy]$/i.test(event.key)) return;
  event.preventDefault();
  if (event.key === "z") undo(); else redo(); // Ctrl+Shift+Z and Ctrl+Y
});
document.documentElement.dataset.ready = "";
performance.mark("ready");
