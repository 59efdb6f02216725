(() => {
"use strict";
// Light and dark theme, and the button that copies the command; everything else on the page needs no script.
const find = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)"), root = document.documentElement;
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
const show = () => {
  find("theme").textContent = isDark() ? "Light" : "Dark";
  find("theme").setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
};
find("theme").addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; show(); });
dark.addEventListener("change", show);
show();
find("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(find("command").textContent);
  } catch { // some browsers give local pages no clipboard: leave the command selected
    getSelection().selectAllChildren(find("command"));
    if (!document.execCommand("copy")) { find("copy").textContent = "Press Ctrl+C"; return; }
  }
  find("copy").textContent = "Copied";
  setTimeout(() => { find("copy").textContent = "Copy"; }, 1600);
});
// What a point of the polar plot says, for those who point at it or move to it with the keyboard.
for (const point of document.querySelectorAll(".audit-polar .dot")) {
  for (const event of ["pointerenter", "focus"]) {
    point.addEventListener(event, () => { find("audit-reading").textContent = point.dataset.reading; });
  }
}
root.dataset.ready = "";
})();
