"use strict";
// Shared by the pages of the server.
const at = (id) => document.getElementById(id);

// Sends a request with the token of the page; shows the field of the token if the server wants one.
async function request(method, path, body) {
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (at("token").value) headers.Authorization = "Bearer " + at("token").value;
  const response = await fetch(path, { method, headers, body });
  if (response.status === 401) at("token-field").hidden = false;
  return response;
}
