// Sets the theme that the user chose before anything is drawn; without a choice the system decides.
if (["light", "dark"].includes(localStorage.getItem("phalanx-theme"))) document.documentElement.dataset.theme = localStorage.getItem("phalanx-theme");
