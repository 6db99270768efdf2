"use strict";
// Shows the entry of the slider's stop. All figures and words come ready from the page.
{
  const section = document.getElementById("explore");
  const slider = document.getElementById("explore-budget");
  const stops = JSON.parse(document.getElementById("explore-data").textContent);
  const marker = section.querySelector(".explore-marker");
  const line = section.querySelector(".explore-line");

  const show = () => {
    const stop = stops[Number(slider.value)];
    for (const place of section.querySelectorAll("[data-show]"))
      place.textContent = stop[place.dataset.show];
    // Words with a command in them: split at the back-ticks, never parsed as HTML.
    const state = section.querySelector("[data-show=state]");
    state.replaceChildren(...stop.state.split("`").map((text, i) => {
      const part = document.createElement(i % 2 ? "code" : "span");
      part.textContent = text;
      return part;
    }));
    for (const part of section.querySelectorAll("[data-result]"))
      part.classList.toggle("shown", Number(part.dataset.result) === stop.result);
    for (const button of section.querySelectorAll("[data-stop]"))
      button.setAttribute("aria-pressed", String(button.dataset.stop === slider.value));
    section.dataset.kind = stop.kind;
    slider.setAttribute("aria-valuetext", `${stop.budget}, ${stop.badge.toLowerCase()}`);
    line.setAttribute("transform", `translate(${stop.line} 0)`);
    marker.classList.toggle("absent", !stop.marker);
    if (stop.marker) {
      marker.setAttribute("cx", stop.marker[0]);
      marker.setAttribute("cy", stop.marker[1]);
    }
  };

  slider.addEventListener("input", show);
  for (const button of section.querySelectorAll("[data-stop]"))
    button.addEventListener("click", () => { slider.value = button.dataset.stop; show(); });
  // Open where there is room; whatever a reader chose stays so when another budget is nearest.
  const tables = section.querySelectorAll(".explore-episodes");
  for (const table of tables) {
    table.open = matchMedia("(min-width: 52rem)").matches;
    table.addEventListener("toggle", () => {
      if (table.classList.contains("shown"))
        for (const other of tables) other.open = table.open;
    });
  }
  section.classList.add("live");
  show();
}
