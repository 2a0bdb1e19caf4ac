// The filter, links to features, and printing. All that it reads is the page's own JSON and its own elements.
"use strict";
(() => {
  const one = (id) => document.getElementById(id);
  const patches = JSON.parse(one("data").textContent);
  const words = one("words"), upstream = one("upstream"), proof = one("proof"), found = one("found");
  const numbers = (element) => element.dataset.p.split(" ").filter(Boolean).map(Number);
  const elements = [...document.querySelectorAll("[data-p]")].map((element) => ({
    element,
    about: numbers(element),
    own: element.dataset.own && element.dataset.own.toLowerCase(),
    byPath: Boolean(element.closest(".paths")),
  }));
  const said = patches.map((p) =>
    [p.feature, p.upstream, p.stack, p.subject, p.switch, p.kind, p.need, p.change, p.upstream_status, ...p.requires, ...p.profiles]
      .join("\n").toLowerCase());
  const files = patches.map((p) => [p.path, ...p.files.map((f) => f.path)].join("\n").toLowerCase());

  function filter() {
    const terms = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const inAll = (text) => terms.every((term) => text.includes(term));
    const chosen = patches.map((p) =>
      (!upstream.value || p.upstream === upstream.value) && (!proof.value || (proof.value === "proven") === (p.unproven === null)));
    const bySaid = patches.map((_, n) => chosen[n] && inAll(said[n]));
    const byAny = patches.map((_, n) => chosen[n] && inAll(said[n] + "\n" + files[n]));
    const all = !terms.length && !upstream.value && !proof.value;
    for (const { element, about, own, byPath } of elements) {
      const named = own !== undefined && inAll(own) && (about.some((n) => chosen[n]) || (!about.length && !upstream.value && !proof.value));
      element.hidden = !(all || named || about.some((n) => (byPath ? bySaid : byAny)[n]));
    }
    for (const part of document.querySelectorAll("main > section")) {
      part.hidden = !all && !part.querySelector("[data-p]:not([hidden])");
    }
    const count = byAny.filter(Boolean).length;
    found.textContent = `${count} of ${patches.length} patches` + (count || all ? "" : ": nothing has all of this");
  }

  function clear() {
    words.value = upstream.value = proof.value = "";
    filter();
  }

  // #FEATURE, and #FEATURE@UPSTREAM, as patchctl takes one.
  function follow() {
    const name = decodeURIComponent(location.hash.slice(1));
    const target = one(name) || one(name.split("@")[0]);
    if (!target) return;
    if (target.closest("[hidden]")) clear();
    for (let box = target.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    target.scrollIntoView();
    const head = target.querySelector(":scope > summary");
    if (head) head.focus({ preventScroll: true });
  }

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const box of opened) box.open = true;
  });
  addEventListener("afterprint", () => {
    for (const box of opened) box.open = false;
  });
  addEventListener("hashchange", follow);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    // A second click on the same link changes no hash.
    if (link && (link.getAttribute("href") || "") === location.hash) follow();
  });
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      words.focus();
    } else if (event.key === "Escape" && document.activeElement === words) {
      clear();
    }
  });
  words.addEventListener("input", filter);
  for (const choice of [upstream, proof]) choice.addEventListener("change", filter);
  one("clear").addEventListener("click", () => { clear(); words.focus(); });
  one("filter").hidden = false;
  clear();
  follow();
})();
