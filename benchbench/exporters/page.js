"use strict";
(() => {
  const all = (what, from = document) => [...from.querySelectorAll(what)];
  const state = new URLSearchParams(location.hash.startsWith("#?") ? location.hash.slice(2) : "");
  const tools = document.querySelector(".tools"), search = document.getElementById("q");
  tools.hidden = document.getElementById("theme").hidden = false;
  const keep = (name, value) => {
    value ? state.set(name, value) : state.delete(name);
    history.replaceState(null, "", String(state) ? "#?" + state : location.pathname + location.search);
  };
  const filter = () => {
    const words = (state.get("q") || "").toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of all("tbody.rows > tr:not(.axis)")) {
      const near = row.classList.contains("more") ? row.previousElementSibling : row;
      const text = (near.closest("section").dataset.title + " " + near.textContent).toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  };
  const pick = () => {
    const name = state.get("pick");
    for (const each of all("[data-b]"))
      each.classList.toggle("faded", Boolean(name) && each.dataset.b !== name);
    for (const each of all("button[data-pick]"))
      each.setAttribute("aria-pressed", String(each.dataset.pick === name));
  };
  const theme = () => {
    const name = state.get("theme");
    name ? (document.documentElement.dataset.theme = name) : delete document.documentElement.dataset.theme;
  };
  const value = (row, column) => {
    const cell = row.cells[column];
    if (!cell) return Infinity;
    return cell.dataset.v === undefined ? cell.textContent.trim() : Number(cell.dataset.v);
  };
  const order = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  const sort = () => {
    const [table, column, way] = (state.get("sort") || "").split(".");
    for (const head of all("th[aria-sort]")) head.removeAttribute("aria-sort");
    const button = document.querySelector(`button[data-sort="${CSS.escape(table + "." + column)}"]`);
    if (!button) return;
    button.closest("th").setAttribute("aria-sort", way === "down" ? "descending" : "ascending");
    const body = button.closest("table").tBodies[0];
    const rows = all("tr:not(.axis):not(.more)", body).map((row) => {
      const more = row.nextElementSibling;
      return [row, more && more.classList.contains("more") ? more : null];
    });
    const sign = way === "down" ? -1 : 1;
    rows.sort(([a], [b]) => sign * order(value(a, Number(column)), value(b, Number(column))));
    for (const pair of rows) body.append(...pair.filter(Boolean));
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.sort) {
      const up = state.get("sort") !== button.dataset.sort + ".up";
      keep("sort", button.dataset.sort + (up ? ".up" : ".down"));
      sort();
    } else if (button.dataset.pick) {
      keep("pick", state.get("pick") === button.dataset.pick ? "" : button.dataset.pick);
      pick();
    } else if (button.name === "copy") {
      navigator.clipboard?.writeText(button.previousElementSibling.textContent);
      button.textContent = "copied";
    } else if (button.id === "theme") {
      const dark = matchMedia("(prefers-color-scheme: dark)").matches;
      const now = state.get("theme") || (dark ? "dark" : "light");
      keep("theme", now === "dark" ? "light" : "dark");
      theme();
    }
  });
  for (const code of all("li > code"))
    code.after(" ", Object.assign(document.createElement("button"), { textContent: "copy", name: "copy" }));
  search.value = state.get("q") || "";
  search.addEventListener("input", () => { keep("q", search.value); filter(); });
  filter(); pick(); theme(); sort();
})();
