// Sets the theme before anything is drawn; without a choice of the user the system decides.
(() => {
  const chosen = localStorage.getItem("phalanx-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
