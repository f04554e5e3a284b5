"use strict";
// Draw the figures of the JSON block when they come into view; sort tables, hide methods, switch themes.
// Names of files, classes and methods are set as text, never as markup.
(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const boxes = [...document.querySelectorAll("#methods input")];
  const hiddenMethods = new Set();
  const drawn = new Map(); // element of a plot -> its card
  const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  // On touch screens the toolbar of a plot never goes away and covers its top right corner.
  const toolbar = matchMedia("(hover: hover)").matches ? "hover" : false;
  let printing = false;

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const isShown = (method) => !method || !hiddenMethods.has(method);

  // ---- figures ----
  // Figures refer to colours of the page by name; they differ between light and dark.
  const named = new Set(["ink", "surface", "scale0", "scale1", "scale2", "scale3", "scale4"]);
  function themed(value) {
    if (Array.isArray(value)) return value.map(themed);
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, themed(inner)]));
    return named.has(value) ? colour("--" + value) : value;
  }

  function axisStyle(axis) {
    return {
      gridcolor: colour("--grid"), linecolor: colour("--line"), zerolinecolor: colour("--line"), automargin: true,
      tickfont: { color: colour("--soft"), size: 11 }, fixedrange: false, ...axis,
      title: { standoff: 8, font: { color: colour("--soft"), size: 12 }, ...axis.title },
    };
  }

  function layoutOf(figure) {
    const layout = themed(figure.layout);
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest", autosize: true,
      height: figure.height, margin: { l: 50, r: 12, t: 12, b: 44 },
      font: { family: colour("--sans"), size: 12, color: colour("--ink") },
      hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--line"), font: { color: colour("--ink") } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--faint"), activecolor: colour("--accent") },
      ...layout,
      legend: { orientation: "h", x: 0, y: 0, yref: "container", yanchor: "bottom", font: { size: 11 }, ...layout.legend },
      xaxis: axisStyle(layout.xaxis), yaxis: axisStyle(layout.yaxis),
    };
  }

  function isAlone(plot) {
    return plot.closest(".cards").querySelectorAll("figure:not([hidden])").length === 1;
  }

  function draw(plot) {
    const { figure } = drawn.get(plot);
    const traces = themed(figure.data.filter((trace) => isShown(trace.meta && trace.meta.method)));
    for (const trace of traces)
      if (trace.colorbar) Object.assign(trace.colorbar, { tickfont: { color: colour("--soft"), size: 10 } });
    const layout = layoutOf(figure);
    // The width of the paper is not known before the page is laid out for print.
    if (printing) Object.assign(layout, { autosize: false, width: figure.width || isAlone(plot) ? 660 : 320 });
    plot.dataset.drawn = "1";
    return Plotly.react(plot, traces, layout, {
      responsive: true, displaylogo: false, displayModeBar: toolbar, showSendToCloud: false, plotlyServerURL: "",
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
    });
  }

  const watcher = "IntersectionObserver" in window
    ? new IntersectionObserver((entries) => {
        for (const entry of entries)
          if (entry.isIntersecting) { watcher.unobserve(entry.target); if (drawn.has(entry.target)) draw(entry.target); }
      }, { rootMargin: "400px 0px" })
    : null;

  function show(section, index) {
    const box = section.querySelector(".cards");
    for (const plot of box.querySelectorAll(".plot")) {
      if (plot.dataset.drawn) Plotly.purge(plot);
      if (watcher) watcher.unobserve(plot);
      drawn.delete(plot);
    }
    const { options, hint } = figures[section.id];
    const option = options[index];
    box.replaceChildren();
    box.classList.toggle("few", option.cards.length < 3);
    const widest = Math.max(...option.cards.map((card) => card.figure.width || 0));
    box.style.gridTemplateColumns = widest ? "repeat(auto-fit, minmax(min(100%, " + widest + "px), 1fr))" : "";
    for (const card of option.cards) {
      const figure = document.createElement("figure");
      const caption = document.createElement("figcaption");
      const plot = document.createElement("div");
      caption.textContent = card.title;
      plot.className = "plot";
      plot.style.height = card.figure.height + "px";
      if (card.figure.width) plot.style.minWidth = card.figure.width + "px";
      plot.setAttribute("role", "img");
      plot.setAttribute("aria-label", card.title + ", " + option.label + ". " + hint);
      if (card.method) { figure.dataset.method = card.method; figure.hidden = !isShown(card.method); }
      figure.append(caption, plot);
      box.append(figure);
      drawn.set(plot, card);
      if (watcher) watcher.observe(plot); else draw(plot);
    }
    section.querySelector(".note").textContent = option.note;
    showEmptyNote(section);
  }

  function showEmptyNote(section) {
    const box = section.querySelector(".cards");
    const cards = [...box.querySelectorAll("figure")];
    const old = box.querySelector(".none");
    if (old) old.remove();
    if (cards.every((card) => card.hidden)) {
      const line = document.createElement("p");
      line.className = "none";
      line.textContent = "All methods are hidden; choose some under “Methods shown”.";
      box.append(line);
    }
  }

  const sections = [...document.querySelectorAll(".drawn")];
  for (const section of sections) {
    const select = section.querySelector("select");
    select.addEventListener("change", () => show(section, Number(select.value)));
    show(section, Number(select.value) || 0);
  }

  function redraw() {
    for (const plot of drawn.keys()) if (plot.dataset.drawn) draw(plot);
  }

  // ---- methods ----
  for (const box of boxes)
    box.addEventListener("change", () => {
      if (box.checked) hiddenMethods.delete(box.value); else hiddenMethods.add(box.value);
      for (const element of document.querySelectorAll("[data-method]"))
        element.hidden = !isShown(element.dataset.method);
      sections.forEach(showEmptyNote);
      redraw();
    });
  // A browser may restore unchecked boxes after a reload.
  for (const box of boxes) if (!box.checked) box.dispatchEvent(new Event("change"));

  // ---- sorting ----
  // The first press sorts numbers in descending order, the next in ascending order. Open cells stay at the bottom.
  for (const button of document.querySelectorAll(".sort"))
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const table = head.closest("table");
      const at = [...head.parentElement.children].indexOf(head);
      const isText = Boolean(button.dataset.text);
      const first = isText ? "ascending" : "descending";
      const second = isText ? "descending" : "ascending";
      const order = head.getAttribute("aria-sort") === first ? second : first;
      for (const other of table.querySelectorAll("th[aria-sort]")) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const body = table.tBodies[0];
      const valueOf = (row) => row.children[at].dataset.sort;
      body.append(...[...body.rows].sort((a, b) => {
        if (isText) return sign * a.children[at].textContent.trim().localeCompare(b.children[at].textContent.trim());
        const [x, y] = [valueOf(a), valueOf(b)];
        if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
        return sign * (Number(x) - Number(y));
      }));
    });

  // ---- light and dark ----
  const toggle = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches);
  function labelToggle() {
    toggle.textContent = isDark() ? "Light" : "Dark";
    toggle.setAttribute("aria-label", "Use the " + toggle.textContent.toLowerCase() + " theme");
    toggle.setAttribute("aria-pressed", String(isDark()));
  }
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    labelToggle();
    redraw();
  });
  systemDark.addEventListener("change", () => { labelToggle(); if (!printing) redraw(); });
  labelToggle();

  // ---- print: every figure, in light colours ----
  let themeBefore;
  addEventListener("beforeprint", () => {
    printing = true;
    themeBefore = root.dataset.theme;
    root.dataset.theme = "light";
    for (const plot of drawn.keys()) draw(plot);
  });
  addEventListener("afterprint", () => {
    printing = false;
    if (themeBefore === undefined) delete root.dataset.theme; else root.dataset.theme = themeBefore;
    redraw();
  });

  // ---- contents: mark the current section; folded on narrow pages ----
  const contents = document.querySelector(".contents details");
  if (matchMedia("(max-width: 60rem)").matches) contents.open = false;
  const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
  if ("IntersectionObserver" in window) {
    const current = new IntersectionObserver((entries) => {
      for (const entry of entries)
        if (entry.isIntersecting) {
          for (const link of links.values()) link.removeAttribute("aria-current");
          links.get(entry.target.id).setAttribute("aria-current", "true");
        }
    }, { rootMargin: "-20% 0px -70% 0px" });
    for (const id of links.keys()) { const target = document.getElementById(id); if (target) current.observe(target); }
  }
  if (reducedMotion.matches) root.style.scrollBehavior = "auto";
  root.dataset.ready = "1";
})();
